"""Origins, headers and hosts of notebooks."""

import uuid

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from apps.notebooks import hosts, policy
from gpucloud import environment

OWN = "https://a.notebooks.example.org"


def headers(**named: str) -> policy.Headers:
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]


LINK = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}


@pytest.mark.parametrize(
    ("method", "sent", "foreign"),
    [
        ("GET", {"sec_fetch_site": "same-origin"}, False),
        ("POST", {"sec_fetch_site": "same-origin", "origin": OWN}, False),
        ("GET", {"sec_fetch_site": "none", **LINK}, False),
        # A link from elsewhere leads in; a picture, a frame, a form or a script from elsewhere does not.
        ("GET", {"sec_fetch_site": "same-site", **LINK}, False),
        ("GET", {"sec_fetch_site": "cross-site", **LINK}, False),
        ("POST", {"sec_fetch_site": "same-site", **LINK}, True),
        ("GET", {"sec_fetch_site": "same-site", "sec_fetch_mode": "no-cors", "sec_fetch_dest": "image"}, True),
        ("GET", {"sec_fetch_site": "same-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"}, True),
        ("GET", {"sec_fetch_site": "cross-site", "sec_fetch_mode": "cors"}, True),
        # Another notebook is another origin, and so is the same name by another scheme.
        ("POST", {"sec_fetch_site": "same-site", "origin": "https://b.notebooks.example.org"}, True),
        ("POST", {"origin": "http://a.notebooks.example.org"}, True),
        ("POST", {"origin": "null"}, True),
        # A browser that says neither can only be kept from what changes something.
        ("GET", {}, False),
        ("DELETE", {}, True),
    ],
)
def test_what_another_page_makes_a_browser_send_is_foreign(method: str, sent: dict[str, str], foreign: bool) -> None:
    assert policy.is_foreign(headers(**sent), method, OWN) == foreign


def test_jupyter_gets_its_token_and_nothing_of_the_console() -> None:
    sent = headers(
        host="a.notebooks.example.org", authorization="Bearer x", origin=OWN, connection="close, x-own", x_own="1",
        cookie="__Host-gpucloud-notebook=s; gpucloud-notebook=t; _xsrf=2", x_forwarded_proto="https", accept="*/*",
    )  # fmt: skip
    got = policy.to_jupyter(sent, str(uuid.UUID(int=1)))
    assert {name for name, _ in got} == {b"accept", b"cookie", b"host", b"authorization"}
    assert (b"cookie", b"_xsrf=2") in got
    assert policy.find(got, b"authorization").startswith("token ")
    # Each run has a token of its own.
    assert policy.to_jupyter(sent, str(uuid.UUID(int=2)))[-1] != got[-1]


def test_a_browser_gets_nothing_that_reaches_beyond_the_notebook() -> None:
    answer = headers(
        content_type="text/html", set_cookie="_xsrf=1; Path=/", strict_transport_security="max-age=0",
        clear_site_data='"*"', access_control_allow_origin="*", alt_svc='h3=":1"', service_worker_allowed="/",
        x_accel_redirect="/internal/",
    )  # fmt: skip
    answer += [(b"Set-Cookie", b"x=1; Domain=example.org"), (b"set-cookie", b"__Host-gpucloud-notebook=stolen")]
    got = policy.to_browser(answer)
    assert [value for name, value in got if name == b"set-cookie"] == [b"_xsrf=1; Path=/"]
    assert {name for name, _ in got} - {name for name, _ in policy.OWN_TO_BROWSER} == {b"content-type", b"set-cookie"}


@override_settings(NOTEBOOKS_URL="https://notebooks.example.org:8443")
def test_a_host_names_one_notebook_or_none() -> None:
    uid = uuid.uuid4()
    assert hosts.origin_of(uid) == f"https://{uid}.notebooks.example.org:8443"
    assert hosts.notebook_of(f"{uid}.Notebooks.example.org:8443") == uid
    for wrong in (
        f"{uid}.notebooks.example.org", f"{uid.hex}.notebooks.example.org:8443", "notebooks.example.org:8443",
        f"x.{uid}.notebooks.example.org:8443", f"{uid}.notebooks.example.org:8444",
    ):  # fmt: skip
        assert hosts.notebook_of(wrong) is None
        # But no page of the console is there either.
        assert hosts.is_below(wrong) == (not wrong.endswith("evil.org"))
    assert not hosts.is_below("gpus.example.org")
    assert not hosts.is_below("evilnotebooks.example.org")
    assert not hosts.is_below(f"{uid}.notebooks.example.org.evil.org")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://notebooks.example.org", "must be like https://"),
        ("https://notebooks.example.org/path", "must be like https://"),
        ("https://user@notebooks.example.org", "must be like https://"),
        ("https://notebooks", "must be like https://"),
        ("https://notebooks.gpus.example.org", "could act as its reader"),
        ("https://notebooks.trusted.example.org", "could act as its reader"),
    ],
)
def test_an_address_at_which_a_notebook_could_act_in_the_console_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, url: str, words: str
) -> None:
    monkeypatch.setenv("NOTEBOOKS_URL", url)
    with pytest.raises(ImproperlyConfigured, match=words):
        environment.notebooks_url("NOTEBOOKS_URL", [".gpus.example.org"], ["https://*.trusted.example.org"])
    monkeypatch.setenv("NOTEBOOKS_URL", "https://notebooks.example.org/")
    assert environment.notebooks_url("NOTEBOOKS_URL", ["gpus.example.org"], []) == "https://notebooks.example.org"
