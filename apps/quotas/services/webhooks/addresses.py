"""Allowed addresses of webhooks: the server reaches networks that the URL's author must not reach.

A name is resolved once and that address is connected to, so that a second answer of the name server cannot lead
elsewhere. Addresses outside of the public internet are refused unless a setting names their network.
"""

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from django.conf import settings

from gpucloud.errors import Invalid

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
# The well-known prefix by which IPv6 hosts reach IPv4 ones: it contains an IPv4 address, as mapped addresses do.
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# IANA's registries of special-purpose addresses (iana-ipv4- and iana-ipv6-special-registry, as of 2026-01),
# with multicast. Python's own `is_global` differs from one version to the next, and admits 192.0.0.8, fec0::1, 3fff::1.
SPECIAL_IPV4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
            "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16",
            "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
        ),
    )
)  # fmt: skip
# IANA assigns global unicast addresses of IPv6 only from here: fec0::/10, fd00::/8, 5f00::/16 are outside.
GLOBAL_IPV6 = ipaddress.IPv6Network("2000::/3")
# Teredo and 6to4 contain an IPv4 address and are no longer in use; 3ffe::/16 was returned.
SPECIAL_IPV6 = tuple(
    map(
        ipaddress.IPv6Network,
        ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3ffe::/16", "3fff::/20"),
    )
)


class UrlRefused(Invalid, code="webhook-url", title="A webhook cannot go to this URL"):
    """A webhook must not use this URL."""


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL."""

    url: str
    scheme: str
    host: str
    port: int


def origin(url: str) -> str:
    """Return scheme and host, without the path, which may be a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def parse(url: str) -> Target:
    """Parse a webhook's URL and check its address, if literal. Raises UrlRefused."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UrlRefused(f"This is not a URL: {error}.", url=url) from error
    if parts.scheme not in ("https", "http") or not host:
        raise UrlRefused("Begin with https:// and a host name.", url=url)
    if parts.username is not None or parts.password is not None:
        raise UrlRefused("Leave out user name and password: messages are authenticated by their signature.", url=url)
    if parts.fragment or not url.isascii() or not url.isprintable() or any(char.isspace() for char in url):
        raise UrlRefused("Use ASCII without spaces, and no #fragment: write others as %-escapes or as xn--.", url=url)
    if parts.scheme == "http" and not settings.WEBHOOK_NETWORKS:
        raise UrlRefused("Begin with https://: http is for networks that WEBHOOK_NETWORKS names.", url=url)
    target = Target(url, parts.scheme, host, port or (443 if parts.scheme == "https" else 80))
    if (address := _literal(host)) is not None:
        refuse(target, address)
    return target


def resolve(target: Target) -> Address:
    """Return the one address to connect to. Raises UrlRefused, OSError (unknown name)."""
    found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    addresses = [ipaddress.ip_address(str(item[4][0]).partition("%")[0]) for item in found]
    for address in addresses:
        # One forbidden address of several is enough: otherwise the name server would choose.
        refuse(target, address)
    return addresses[0]


def refuse(target: Target, address: Address) -> None:
    """Raise UrlRefused if webhooks must not use this address."""
    allowed = any(address in network for network in settings.WEBHOOK_NETWORKS)
    if target.scheme == "http" and not allowed:
        raise UrlRefused(f"{target.host} needs https: http is for WEBHOOK_NETWORKS only.", host=target.host)
    if not (allowed or public(address)):
        # Without the address: the caller must not learn how internal names resolve.
        raise UrlRefused(
            f"{target.host} is not an address of the public internet: an operator allows others by WEBHOOK_NETWORKS.",
            host=target.host,
        )


def public(address: Address) -> bool:
    """Return True for a global unicast address outside of every special-purpose block, also where IPv6 wraps IPv4."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in SPECIAL_IPV4)
    if address in NAT64:
        return public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if address.ipv4_mapped is not None:
        return public(address.ipv4_mapped)
    return address in GLOBAL_IPV6 and not any(address in network for network in SPECIAL_IPV6)


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
