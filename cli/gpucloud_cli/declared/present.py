"""State of the server, in the shape in which files declare it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from gpucloud_cli.api import Api
from gpucloud_cli.declared.kinds import ORGANISATION, POOL, TENANT, Identity, Kind, identity
from gpucloud_cli.failures import Problem


@dataclass(frozen=True)
class Row:
    """One object on the server."""

    who: Identity
    values: Mapping[str, Any]
    path: str
    etag: str | None


def collection(kind: Kind, owner: str | None) -> str:
    """Return the path of a kind's collection."""
    return kind.path.format(tenant=quote(owner or "", safe=""))


def row(kind: Kind, answered: Mapping[str, Any], owner: str | None) -> Row:
    """Convert the server's answer, without fields that files do not declare."""
    values = {name: answered[name] for name in kind.fields if name in answered}
    path = f"{collection(kind, owner)}{quote(str(answered[kind.key]), safe='')}/"
    etag = f'"{answered["version"]}"' if kind.versioned else None
    return Row(identity(kind, values, owner), values, path, etag)


def pools(api: Api) -> list[Row]:
    """Return all pools."""
    return [row(POOL, answered, None) for answered in api.rows(POOL.path)]


def document(api: Api, kind: Kind, slug: str, kinds: Iterable[Kind] | None = None) -> list[Row]:
    """Return a tenant or an organisation and its objects of these kinds, or all; nothing if there is none."""
    try:
        answered = api.get(f"{kind.path}{quote(slug, safe='')}/").body
    except Problem as problem:
        if problem.status == 404:
            return []
        raise
    inner = kind.within if kinds is None else kinds
    return [row(kind, answered, None), *(found for one in inner for found in within(api, one, slug))]


def within(api: Api, kind: Kind, slug: str) -> Iterable[Row]:
    """Return the objects of a kind that a tenant or an organisation has."""
    where: dict[str, Any] = {} if "{tenant}" in kind.path else {kind.owner: slug}
    return [row(kind, answered, slug) for answered in api.rows(collection(kind, slug), **where)]


def tenants(api: Api) -> list[str]:
    """Return the slugs of all tenants that the token may see."""
    return sorted(answered["slug"] for answered in api.rows(TENANT.path))


def organisations(api: Api) -> list[str]:
    """Return the slugs of all organisations that the token may see, from the top of the tree."""
    above: dict[str, str | None] = {row["slug"]: row["parent"] for row in api.rows(ORGANISATION.path)}

    def lineage(slug: str | None) -> list[str]:
        return [] if slug is None else [*lineage(above.get(slug)), slug]

    return sorted(above, key=lineage)
