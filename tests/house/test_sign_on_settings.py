"""Settings of single sign-on: invalid values stop the start with a message."""

from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from gpucloud import environment


@pytest.mark.parametrize("value", ["https://sso.example.org", "https://sso.example.org/realms/a", "http://localhost:1"])
def test_an_issuer_is_an_https_address_or_on_this_machine(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("OIDC_ISSUER", value)
    assert environment.issuer("OIDC_ISSUER") == value


@pytest.mark.parametrize("value", ["http://sso.example.org", "sso.example.org", "ftp://localhost", "https://"])
def test_another_issuer_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("OIDC_ISSUER", value)
    with pytest.raises(ImproperlyConfigured, match="OIDC_ISSUER"):
        environment.issuer("OIDC_ISSUER")


def test_nothing_set_is_no_sign_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OIDC_ISSUER", "OIDC_CLIENT_ID", "OIDC_CLIENT_SECRET", "OIDC_GROUP_ROLES"):
        monkeypatch.setenv(name, "")
    assert environment.issuer("OIDC_ISSUER") == ""
    assert environment.text_beside("OIDC_CLIENT_ID", "OIDC_ISSUER", "") == ""
    assert environment.secret("OIDC_CLIENT_SECRET") == ""
    assert environment.group_roles("OIDC_GROUP_ROLES") == []


def test_an_issuer_needs_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OIDC_CLIENT_ID", raising=False)
    with pytest.raises(ImproperlyConfigured, match="OIDC_CLIENT_ID is not set, but OIDC_ISSUER is"):
        environment.text_beside("OIDC_CLIENT_ID", "OIDC_ISSUER", "https://sso.example.org")


def test_a_secret_may_lie_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hush\n")
    monkeypatch.setenv("OIDC_CLIENT_SECRET_FILE", str(tmp_path / "secret"))
    monkeypatch.delenv("OIDC_CLIENT_SECRET", raising=False)
    assert environment.secret("OIDC_CLIENT_SECRET") == "hush"
    monkeypatch.setenv("OIDC_CLIENT_SECRET", "other")
    with pytest.raises(ImproperlyConfigured, match="both set"):
        environment.secret("OIDC_CLIENT_SECRET")
    monkeypatch.delenv("OIDC_CLIENT_SECRET")
    monkeypatch.setenv("OIDC_CLIENT_SECRET_FILE", str(tmp_path / "absent"))
    with pytest.raises(ImproperlyConfigured, match="cannot be read"):
        environment.secret("OIDC_CLIENT_SECRET")


def test_rules_give_roles_by_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OIDC_GROUP_ROLES", "ops=operator, cn=ml=acme:member ,leads=acme:admin")
    assert environment.group_roles("OIDC_GROUP_ROLES") == [
        ("ops", None, "operator"),
        ("cn=ml", "acme", "member"),
        ("leads", "acme", "admin"),
    ]


@pytest.mark.parametrize("rule", ["ops", "=operator", "ml=acme", "ml=acme:owner", "ml=:admin", "ml=operator:x"])
def test_a_rule_that_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    monkeypatch.setenv("OIDC_GROUP_ROLES", rule)
    with pytest.raises(ImproperlyConfigured, match="OIDC_GROUP_ROLES"):
        environment.group_roles("OIDC_GROUP_ROLES")
