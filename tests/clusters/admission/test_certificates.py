"""Certificates that a current OpenSSL client accepts, and their renewal without an interruption."""

import ssl
import stat
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from django.core.management import CommandError, call_command

from apps.clusters.admission import certificates

NAMES = ["gpucloud.gpucloud.svc", "127.0.0.1"]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def certificate(directory: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((directory / "tls.crt").read_bytes())


def is_trusted_by(directory: Path, bundle: bytes) -> bool:
    """Return True if the listener's certificate is signed by one of the bundle's authorities."""
    authorities = x509.load_pem_x509_certificates(bundle)
    door = certificate(directory)
    for authority in authorities:
        if authority.subject == door.issuer:
            door.verify_directly_issued_by(authority)
            return True
    return False


def test_everything_is_made_once_and_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    directory = tmp_path / "tls"
    first = certificates.rotate(directory, NAMES, now=NOW)
    assert set(first) == {"ca.crt", "ca.key", "ca-bundle.crt", "tls.crt", "tls.key"}
    assert certificates.rotate(directory, NAMES, now=NOW + timedelta(days=30)) == []
    assert {stat.S_IMODE((directory / name).stat().st_mode) for name in ("ca.key", "tls.key")} == {0o600}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(directory / "tls.crt", directory / "tls.key")


def test_the_certificate_is_renewed_long_before_its_end_by_the_same_authority(tmp_path: Path) -> None:
    certificates.rotate(tmp_path, NAMES, now=NOW)
    bundle = certificates.bundle(tmp_path)
    later = NOW + timedelta(days=250)
    assert certificates.rotate(tmp_path, NAMES, now=later) == ["tls.crt", "tls.key"]
    assert certificate(tmp_path).not_valid_after_utc > later + timedelta(days=300)
    assert certificates.bundle(tmp_path) == bundle
    assert is_trusted_by(tmp_path, bundle)


def test_a_new_authority_is_trusted_beside_the_one_before(tmp_path: Path) -> None:
    certificates.rotate(tmp_path, NAMES, now=NOW)
    before, old_door = certificates.bundle(tmp_path), certificate(tmp_path)
    certificates.rotate(tmp_path, NAMES, now=NOW + timedelta(days=2500))
    bundle = certificates.bundle(tmp_path)
    assert before in bundle
    assert bundle != before
    assert is_trusted_by(tmp_path, bundle)
    assert not is_trusted_by(tmp_path, before)
    assert certificate(tmp_path).serial_number != old_door.serial_number


def test_other_names_or_a_key_that_does_not_fit_are_another_certificate(tmp_path: Path) -> None:
    certificates.rotate(tmp_path, NAMES, now=NOW)
    assert certificates.rotate(tmp_path, [*NAMES, "::1"], now=NOW) == ["tls.crt", "tls.key"]
    (tmp_path / "tls.key").write_bytes((tmp_path / "ca.key").read_bytes())
    assert certificates.rotate(tmp_path, [*NAMES, "::1"], now=NOW) == ["tls.crt", "tls.key"]
    assert certificates.rotate(tmp_path, [*NAMES, "::1"], now=NOW, force=True) == ["tls.crt", "tls.key"]


def test_the_command_prints_configurations_that_trust_what_it_made(tmp_path: Path) -> None:
    out = StringIO()
    call_command("webhook_certificates", directory=tmp_path, service="gpucloud/webhooks", stdout=out, stderr=StringIO())
    mutating, validating = yaml.safe_load_all(out.getvalue())
    assert (mutating["kind"], validating["kind"]) == ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    client = mutating["webhooks"][0]["clientConfig"]
    assert client["service"] == {"namespace": "gpucloud", "name": "webhooks", "port": 443, "path": "/admission/mutate"}
    assert validating["webhooks"][0]["failurePolicy"] == "Fail"
    assert validating["webhooks"][0]["matchConditions"]
    assert "webhooks.gpucloud.svc" in certificate(tmp_path).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    ).value.get_values_for_type(x509.DNSName)


def test_without_conditions_a_door_that_is_away_stops_no_pod(tmp_path: Path) -> None:
    out = StringIO()
    said = {"directory": tmp_path, "url": "https://10.0.0.1:8443", "before_1_28": True}
    call_command("webhook_certificates", stdout=out, stderr=StringIO(), **said)
    for configuration in yaml.safe_load_all(out.getvalue()):
        for webhook in configuration["webhooks"]:
            assert webhook["failurePolicy"] == "Ignore"
            assert "matchConditions" not in webhook


@pytest.mark.parametrize(
    "said",
    [{}, {"service": "a/b", "url": "https://x"}, {"service": "a"}, {"service": "a/b/c"}, {"url": "http://x"}],
)
def test_what_no_api_server_could_reach_is_refused(tmp_path: Path, said: dict[str, str]) -> None:
    with pytest.raises(CommandError):
        call_command("webhook_certificates", directory=tmp_path, stdout=StringIO(), stderr=StringIO(), **said)
    assert not list(tmp_path.iterdir())
