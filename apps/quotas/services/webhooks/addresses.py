"""Where a webhook may go. Its URL is somebody else's wish, and this server reaches more than they do.

A name is resolved once and that address is connected to, so that a second answer of the name server cannot lead
elsewhere. What is not of the public internet is refused unless a setting names its network.
"""

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from django.conf import settings

from gpucloud.errors import Invalid

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
# The well-known prefix by which IPv6 hosts reach IPv4 ones: it hides an address as a mapped one does.
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class UrlRefused(Invalid):
    """A webhook cannot go there."""

    code = "webhook-url"
    title = "A webhook cannot go to this URL"


@dataclass(frozen=True, slots=True)
class Target:
    """A URL, taken apart."""

    url: str
    scheme: str
    host: str
    port: int


def origin(url: str) -> str:
    """Where it goes, without the path, which may be a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def parse(url: str) -> Target:
    """The URL, where it is one for a webhook, and its address one that may be, as far as it says. Raises UrlRefused."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UrlRefused(f"This is not a URL: {error}.", url=url) from error
    if parts.scheme not in ("https", "http") or not host:
        raise UrlRefused("Begin with https:// and a host name.", url=url)
    if parts.username is not None or parts.password is not None:
        raise UrlRefused("Leave out user name and password: what comes is known by its signature.", url=url)
    if parts.fragment or not url.isascii() or not url.isprintable() or any(char.isspace() for char in url):
        raise UrlRefused("Use ASCII without spaces, and no #fragment: write others as %-escapes or as xn--.", url=url)
    if parts.scheme == "http" and not settings.WEBHOOK_NETWORKS:
        raise UrlRefused("Begin with https://: http is for networks that WEBHOOK_NETWORKS names.", url=url)
    target = Target(url, parts.scheme, host, port or (443 if parts.scheme == "https" else 80))
    if (address := _literal(host)) is not None:
        refuse(target, address)
    return target


def resolve(target: Target) -> Address:
    """The one address to connect to. Raises UrlRefused, OSError (the name is not known)."""
    found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    addresses = [ipaddress.ip_address(str(item[4][0]).partition("%")[0]) for item in found]
    for address in addresses:
        # One of several that may not be is reason enough: which is taken would be the name server's choice.
        refuse(target, address)
    return addresses[0]


def refuse(target: Target, address: Address) -> None:
    """Raises UrlRefused where no webhook may go to this address."""
    allowed = any(address in network for network in settings.WEBHOOK_NETWORKS)
    if target.scheme == "http" and not allowed:
        raise UrlRefused(f"{target.host} needs https: http is for WEBHOOK_NETWORKS only.", host=target.host)
    if not (allowed or public(address)):
        # Without the address: what names resolve to inside is not the caller's to learn.
        raise UrlRefused(
            f"{target.host} is not an address of the public internet: an operator allows others by WEBHOOK_NETWORKS.",
            host=target.host,
        )


def public(address: Address) -> bool:
    """Whether it is of the public internet, also where it is wrapped in another."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in NAT64:
            return public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo and address.teredo[1])
        if inner:
            return public(inner)
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
