"""State of the server, in the shape in which files declare it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from gpucloud_cli.api import Api
from gpucloud_cli.declared.kinds import POOL, TENANT, WITHIN_TENANTS, Identity, Kind, identity
from gpucloud_cli.failures import Problem


@dataclass(frozen=True)
class Row:
    """One object on the server."""

    who: Identity
    values: Mapping[str, Any]
    path: str
    etag: str | None


def collection(kind: Kind, tenant: str | None) -> str:
    """Return the path of a kind's collection."""
    return kind.path.format(tenant=quote(tenant or "", safe=""))


def row(kind: Kind, answered: Mapping[str, Any], tenant: str | None) -> Row:
    """Convert the server's answer, without fields that files do not declare."""
    values = {name: answered[name] for name in kind.fields if name in answered}
    path = f"{collection(kind, tenant)}{quote(str(answered[kind.key]), safe='')}/"
    etag = f'"{answered["version"]}"' if kind.versioned else None
    return Row(identity(kind, values, tenant), values, path, etag)


def pools(api: Api) -> list[Row]:
    """Return all pools."""
    return [row(POOL, answered, None) for answered in api.rows(POOL.path)]


def tenant(api: Api, slug: str, kinds: Iterable[Kind] = WITHIN_TENANTS) -> list[Row]:
    """Return a tenant and its objects of these kinds; nothing if there is no such tenant."""
    try:
        answered = api.get(f"{TENANT.path}{quote(slug, safe='')}/").body
    except Problem as problem:
        if problem.status == 404:
            return []
        raise
    return [row(TENANT, answered, None), *(found for kind in kinds for found in within(api, kind, slug))]


def within(api: Api, kind: Kind, slug: str) -> Iterable[Row]:
    """Return a tenant's objects of a kind."""
    where: dict[str, Any] = {} if "{tenant}" in kind.path else {"tenant": slug}
    return [row(kind, answered, slug) for answered in api.rows(collection(kind, slug), **where)]


def tenants(api: Api) -> list[str]:
    """Return the slugs of all tenants that the token may see."""
    return sorted(answered["slug"] for answered in api.rows(TENANT.path))
