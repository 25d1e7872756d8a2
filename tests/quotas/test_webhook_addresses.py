"""Addresses that webhooks may not reach, whatever their URL says."""

import socket
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from apps.quotas.services.webhooks import addresses, posting
from tests.cast import Cast
from tests.receiver import Receiver, receive

INSIDE = (
    "127.0.0.1", "127.1.2.3", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "224.0.0.1", "255.255.255.255", "240.0.0.1", "::1", "::", "fe80::1", "fd00::1", "ff02::1", "::ffff:127.0.0.1",
    "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "192.0.2.1", "2001:db8::1",
    # Not public either, whatever a version of Python says: site-local, documentation, protocol assignments, benchmarks,
    # SRv6, ORCHID, Teredo, local NAT64, discard-only.
    "fec0::1", "3fff::1", "192.0.0.8", "192.0.0.9", "192.0.0.170", "198.18.0.1", "198.51.100.1", "203.0.113.1",
    "192.88.99.1", "5f00::1", "2001:20::1", "2001::1", "2001:2::1", "2002:101:101::", "64:ff9b:1::1", "100::1",
    "3ffe::1", "4000::1", "::1.1.1.1", "::ffff:192.0.0.8", "64:ff9b::c000:8", "fe80::1%eth0",
)  # fmt: skip


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receive() as it:
        yield it


def posted(url: str) -> posting.Answer:
    return posting.post(url, b"{}", {})


@pytest.mark.parametrize("address", INSIDE)
def test_an_address_inside_is_refused_when_it_is_named(cast: Cast, address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    body = {"tenant": "acme", "url": f"https://{host}/", "events": ["claim.active"]}
    answer = cast.anna.post("webhooks/", body)
    assert (answer.status, answer.code) == (422, "webhook-url")


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "192.0.1.1", "223.255.255.254", "2606:4700::1111", "2a00::1", "64:ff9b::101:101"]
)
def test_the_public_internet_is_not(address: str) -> None:
    assert addresses.public(ip_address(address))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/", "https:///x", "https://", "//example.org", "http://example.org/", "https://a:b@example.org/",
        "https://example.org/#x", "https://example.org/a b", "https://ex ample.org/", "https://exämple.org/",
        "https://example.org:99999/", "https://[::1/", "https://exam\nple.org/", "javascript:alert(1)",
    ],
)  # fmt: skip
def test_what_is_no_url_for_a_webhook_is_refused(cast: Cast, url: str) -> None:
    answer = cast.anna.post("webhooks/", {"tenant": "acme", "url": url, "events": ["claim.active"]})
    assert answer.status in (400, 422)
    with pytest.raises(addresses.UrlRefused):
        addresses.parse(url)


@pytest.mark.parametrize("host", ["localhost", "0x7f000001", "2130706433", "127.1", "017700000001"])
def test_a_name_that_leads_inside_is_refused_when_it_is_sent(host: str, receiver: Receiver) -> None:
    answer = posted(f"https://{host}:{receiver.port}/")
    assert answer.status is None
    assert "not an address of the public internet" in (answer.error or "")
    assert "127.0.0.1" not in (answer.error or "")
    assert receiver.came == []


def test_the_same_name_is_reached_where_the_setting_allows_it(receiver: Receiver, settings: Any) -> None:
    settings.WEBHOOK_NETWORKS = [ip_network("127.0.0.0/8"), ip_network("::1/128")]
    assert posted(f"http://localhost:{receiver.port}/").delivered


def test_a_network_that_is_allowed_allows_no_other(receiver: Receiver, settings: Any) -> None:
    settings.WEBHOOK_NETWORKS = [ip_network("10.0.0.0/8")]
    assert not posted(f"http://127.0.0.1:{receiver.port}/").delivered
    assert not posted(f"https://127.0.0.1:{receiver.port}/").delivered
    assert receiver.came == []


def resolve_to(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Resolve `hooks.test` to these addresses, one query after the other; return the queries."""
    real, asked, left = socket.getaddrinfo, list[str](), list(answers)

    def answer(host: Any, port: Any, *args: Any, **facts: Any) -> Any:
        if host != "hooks.test":
            return real(host, port, *args, **facts)
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in left.pop(0)]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    return asked


def test_the_name_is_resolved_once_and_that_address_connected_to(
    receiver: Receiver, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.WEBHOOK_NETWORKS = [ip_network("127.0.0.0/8")]
    asked = resolve_to(monkeypatch, ["127.0.0.1"], ["203.0.113.1"])
    assert posted(f"http://hooks.test:{receiver.port}/x").delivered
    assert len(asked) == 1
    assert receiver.came[0].headers["host"] == f"hooks.test:{receiver.port}"


def test_one_address_inside_among_others_is_enough_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, ["1.1.1.1", "10.0.0.1"])
    assert "public internet" in (posted("https://hooks.test/").error or "")


def test_a_redirect_is_not_followed(receiver: Receiver, settings: Any) -> None:
    settings.WEBHOOK_NETWORKS = [ip_network("127.0.0.0/8")]
    receiver.answer = lambda _: (307, {"Location": f"http://127.0.0.1:{receiver.port}/elsewhere"})
    answer = posted(receiver.url)
    assert (answer.status, answer.delivered, len(receiver.came)) == (307, False, 1)


def test_a_server_without_tls_is_not_spoken_to_in_the_clear(receiver: Receiver, settings: Any) -> None:
    settings.WEBHOOK_NETWORKS = [ip_network("127.0.0.0/8")]
    answer = posted(f"https://127.0.0.1:{receiver.port}/")
    assert answer.status is None
    assert receiver.came == []


def test_a_proxy_of_the_environment_is_not_asked(
    receiver: Receiver, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.WEBHOOK_NETWORKS = [ip_network("127.0.0.0/8")]
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert posted(receiver.url).delivered
