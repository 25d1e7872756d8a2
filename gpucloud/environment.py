"""Strict settings from the environment: a missing or invalid value stops the start and names the variable to set."""

import os
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from django.core.exceptions import ImproperlyConfigured
from django.http.request import validate_host
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from gpucloud.fastpath.cursors import BindingCursor

TRUE = {"1", "true", "yes", "on"}
FALSE = {"0", "false", "no", "off", ""}
# A server uses one thread each for storing telemetry, reading desired states and handling observations: none waits for
# requests.
THREADS_OF_AGENTS = 3
# A request waits for a connection for as long as a short failover takes; then the database counts as away
# (gpucloud/fastpath/database/outages.py). A pool that cannot connect tries again after 1, 2 and 1 s and gives up; the
# next request makes it try at once.
POOL = {"min_size": 1, "timeout": 3.0, "reconnect_timeout": 4.0}
# Of several hosts each is tried in turn: a machine that is gone without a word must not take the whole time.
EACH_HOST_SECONDS = 3
# libpq's options of a connection: seconds to connect; a peer that is gone is noticed within 45 s, also during a
# statement.
PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 45_000,
}


def text(name: str, default: str | None = None) -> str:
    """Return the variable or the default; without either the start fails."""
    value = os.environ.get(name, default)
    if value is None:
        raise ImproperlyConfigured(f"{name} is not set: see .env.example for what it means, or use `make demo`.")
    return value


def text_beside(name: str, other: str, beside: str) -> str:
    """Return the variable, which is required if the other variable has the value `beside`."""
    value = os.environ.get(name, "")
    if beside and not value:
        raise ImproperlyConfigured(f"{name} is not set, but {other} is: see .env.example for what it means.")
    return value


def flag(name: str, default: bool) -> bool:
    """Return a boolean."""
    value = os.environ.get(name, "1" if default else "0").strip().lower()
    if value not in TRUE | FALSE:
        raise ImproperlyConfigured(f"{name}={value!r} is neither yes nor no: use 1 or 0.")
    return value in TRUE


def number(name: str, default: int, *, least: int = 0) -> int:
    """Return a whole number of `least` or more."""
    value = os.environ.get(name, str(default))
    if not value.isdecimal() or int(value) < least:
        raise ImproperlyConfigured(f"{name}={value!r} is not a whole number, {least} or more.")
    return int(value)


def currency(name: str, default: str) -> str:
    """Return a currency: three capital letters, as in ISO 4217."""
    value = os.environ.get(name, default)
    if not (len(value) == 3 and value.isascii() and value.isalpha() and value.isupper()):
        raise ImproperlyConfigured(f"{name}={value!r} is no currency: use its three letters, like EUR.")
    return value


def words(name: str, default: str = "") -> list[str]:
    """Return a comma-separated list."""
    return [word.strip() for word in os.environ.get(name, default).split(",") if word.strip()]


def networks(name: str, default: str = "") -> list[IPv4Network | IPv6Network]:
    """Return comma-separated networks such as 10.0.0.0/8; an address is a network of one."""
    try:
        return [ip_network(word) for word in words(name, default)]
    except ValueError as error:
        raise ImproperlyConfigured(f"{name}: {error}; use networks like 10.0.0.0/8, separated by commas.") from error


def secret(name: str) -> str:
    """Return a secret from the variable or from the file that NAME_FILE names; empty if neither is set."""
    value, file = os.environ.get(name, ""), os.environ.get(f"{name}_FILE", "")
    if value and file:
        raise ImproperlyConfigured(f"{name} and {name}_FILE are both set: keep one.")
    if not file:
        return value
    try:
        return Path(file).read_text().strip()
    except OSError as error:
        raise ImproperlyConfigured(f"{name}_FILE={file} cannot be read: {error.strerror}.") from error


def path_keys(name: str) -> list[str]:
    """Return comma-separated secrets, also from NAME_FILE, that can be a part of a URL's path."""
    keys = [word.strip() for word in secret(name).split(",") if word.strip()]
    # An API server takes only DNS names as parts of a webhook's path.
    if not all(32 <= len(key) <= 200 and key.isascii() and key.isalnum() and key == key.lower() for key in keys):
        raise ImproperlyConfigured(f"{name}: a key has 32 to 200 small letters and digits (`openssl rand -hex 32`).")
    return keys


def required_secret(name: str) -> str:
    """Return a secret from the variable or from the file that NAME_FILE names; without either the start fails."""
    value = secret(name)
    if not value:
        raise ImproperlyConfigured(f"{name} is not set: see .env.example for what it means, or use `make demo`.")
    return value


def issuer(name: str) -> str:
    """Return an OpenID provider's issuer URL; empty: no provider. Plain HTTP is allowed on this machine only."""
    value = text(name, "").strip()
    parts = urlsplit(value)
    local = parts.hostname in {"127.0.0.1", "localhost", "::1"}
    if value and not (parts.hostname and (parts.scheme == "https" or (parts.scheme == "http" and local))):
        raise ImproperlyConfigured(f"{name}={value} must begin with https://, as the provider names itself.")
    return value


def notebooks_url(name: str, hosts: list[str], origins: list[str]) -> str:
    """Return the URL below which notebooks are, without a path; empty: none. No page of the server may be there."""
    value = text(name, "").strip().rstrip("/").lower()
    if not value:
        return ""
    try:
        parts = urlsplit(value)
        host, is_whole = parts.hostname or "", value == f"{parts.scheme}://{parts.netloc}" and parts.port != 0
    except ValueError as error:
        raise ImproperlyConfigured(f"{name}={value}: {error}.") from error
    is_local = parts.scheme == "http" and host.endswith(".localhost")
    if not (is_whole and parts.username is None and "." in host and (parts.scheme == "https" or is_local)):
        raise ImproperlyConfigured(f"{name}={value} must be like https://notebooks.example.org, a name for notebooks.")
    trusted = [urlsplit(origin).hostname or "" for origin in origins]
    known = [*hosts, *(one.removeprefix("*") for one in trusted)]
    if any(validate_host(one, known) for one in (host, f"uid.{host}")):
        raise ImproperlyConfigured(
            f"{name}={value}: ALLOWED_HOSTS or CSRF_TRUSTED_ORIGINS accept its names, so a notebook could act as its "
            "reader in the console: name the console's own hosts there."
        )
    return value


def require_way_in(name: str, *, local_accounts: bool, issuer: str) -> None:
    """Stop the start if nobody could sign in."""
    if not (local_accounts or issuer):
        raise ImproperlyConfigured(f"{name}=0 needs OIDC_ISSUER: nobody could sign in.")


def group_roles(name: str) -> list[tuple[str, str | None, str]]:
    """Parse `GROUP=operator` and `GROUP=TENANT:ROLE`, separated by commas, as (group, tenant or None, role)."""
    rules: list[tuple[str, str | None, str]] = []
    for word in words(name):
        group, _, right = word.rpartition("=")
        tenant, colon, role = right.partition(":")
        if group and right == "operator":
            rules.append((group, None, right))
        elif group and tenant and colon and role in {"admin", "member", "viewer"}:
            rules.append((group, tenant, role))
        else:
            raise ImproperlyConfigured(f"{name}: {word} is neither GROUP=operator nor GROUP=TENANT:ROLE.")
    return rules


def database(name: str, *, pool_size: int) -> dict[str, Any]:
    """Return Django's database entry for a libpq URL (Unix sockets by ``?host=/directory``)."""
    url = text(name)
    if not url.startswith(("postgresql://", "postgres://")):
        raise ImproperlyConfigured(f"{name} must begin with postgresql://: other databases cannot decide our races.")
    try:
        facts = conninfo_to_dict(url)
    except ProgrammingError as error:
        raise ImproperlyConfigured(f"{name} is not a PostgreSQL URL: {error}") from error
    entry: dict[str, Any] = {"ENGINE": "gpucloud.fastpath.database", "CONN_MAX_AGE": 0}
    for key, theirs in {
        "NAME": "dbname",
        "USER": "user",
        "PASSWORD": "password",
        "HOST": "host",
        "PORT": "port",
    }.items():
        entry[key] = str(facts.pop(theirs, "") or "")
    # The password may be in a file; one in the URL takes precedence.
    entry["PASSWORD"] = entry["PASSWORD"] or secret("DATABASE_PASSWORD")
    # An address that swallows packets would hold up each process for two minutes a try, and a server that is gone
    # without a word for two hours a statement. What the URL says takes precedence.
    entry["OPTIONS"] = PATIENCE | ({"connect_timeout": EACH_HOST_SECONDS} if "," in entry["HOST"] else {}) | facts
    # From its fifth execution on a connection a statement is prepared there, and later only its values are sent.
    entry["OPTIONS"] |= {"server_side_binding": True, "cursor_factory": BindingCursor, "prepare_threshold": 5}
    if pool_size:
        # The server runs each request in a thread; the pool spares each thread its own connection.
        entry["OPTIONS"]["pool"] = POOL | {"max_size": pool_size + THREADS_OF_AGENTS}
    return entry


def celery_broker(redis_url: str) -> str:
    """Return the server in kombu's form: ``redis+socket://`` for a Unix socket, ``virtual_host`` for its database."""
    if not redis_url.startswith("unix://"):
        return redis_url
    path, _, query = redis_url.removeprefix("unix://").partition("?")
    number = dict(parse_qsl(query)).get("db", "0")
    return f"redis+socket://{path}?virtual_host={number}"
