"""Kinds that can be declared: their fields, allowed values, and API paths.

A file has documents of the kinds Pool, Organisation and Tenant; those of the latter two may contain lists of objects
within them.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpucloud_cli import amounts
from gpucloud_cli.fields import schema

API_VERSION = "gpucloud.io/v1"

Check = Callable[[Any], Any]


RESOURCES = ("core_percent", "memory_mib", "vgpus", "gpus", "host_memory_mib")
MIG_INSTANCES = re.compile(r"mig/[0-9]{1,2}g\.[0-9]{1,5}gb")


def text(value: Any) -> str:
    """Check a text.

    Raises ValueError, like every check.
    """
    if not isinstance(value, str):
        raise ValueError(f"must be a text, and {value!r} is none (quote it)")  # noqa: TRY004 - every check raises the same
    return value


def truth(value: Any) -> bool:
    """Check a boolean."""
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, and {value!r} is neither")  # noqa: TRY004 - as above
    return value


def number(value: Any) -> int:
    """Check a whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"must be a whole number, and {value!r} is none")  # noqa: TRY004
    return value


def number_or_null(value: Any) -> int | None:
    """Check a whole number or null."""
    return None if value is None else number(value)


def duration(value: Any) -> int:
    """Convert seconds, or a duration such as 10m."""
    return amounts.seconds(value) if isinstance(value, str) else number(value)


def duration_or_null(value: Any) -> int | None:
    """Convert a duration or null."""
    return None if value is None else duration(value)


def amount(value: Any) -> int:
    """Convert a whole number, a size such as 64GiB to MiB, or a duration such as 2h to seconds."""
    return amounts.amount(value) if isinstance(value, str) else number(value)


def limit(value: Any) -> int | None:
    """Convert an amount; null or `unlimited` means no limit."""
    return None if value is None or value == "unlimited" else amount(value)


def text_or_null(value: Any) -> str | None:
    """Check a text or null."""
    return None if value is None else text(value)


def one_of(choices: tuple[str, ...]) -> Check:
    """Return a check for one of these words."""

    def check(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}, and {value!r} is none of them")
        return str(value)

    return check


def quota_resource(value: Any) -> str:
    """Check the resource of a quota or of a member's limit."""
    if value not in RESOURCES and not (isinstance(value, str) and MIG_INSTANCES.fullmatch(value)):
        raise ValueError(
            f"must be one of {', '.join(RESOURCES)}, or MIG instances such as mig/2g.35gb, and {value!r} is none of "
            "them"
        )
    return str(value)


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of object that files can declare."""

    name: str
    path: str
    # Fields that identify it within its owner (or the platform), and all its fields.
    named_by: tuple[str, ...]
    fields: Mapping[str, Check]
    required: frozenset[str]
    # The API's name of one object: its path ends with this field of the row.
    key: str
    # The list of its owner's document that contains it; None for documents of their own.
    listed: str | None = None
    # The API's field, and filter, of its owner.
    owner: str = "tenant"
    versioned: bool = True
    # The kinds that its document may list.
    within: tuple["Kind", ...] = ()


def _check(name: str, facts: Mapping[str, Any]) -> Check:
    """Return the check of a field of the API."""
    kind, null = facts["type"], facts.get("nullable", False)
    if facts["type"] == "string" and name == "resource" and "enum" not in facts:
        return quota_resource
    if "enum" in facts:
        return one_of(tuple(facts["enum"]))
    if facts.get("format") == "int64":
        return limit
    if name.endswith("_seconds"):
        return duration_or_null if null else duration
    if kind == "integer":
        return number_or_null if null else number
    if kind == "boolean":
        return truth
    return text_or_null if null else text


def _kind(name: str, path: str, named_by: tuple[str, ...], key: str, **more: Any) -> Kind:
    """Return a kind with the fields of a new object of the API."""
    facts = {
        field: found
        for field, found in schema()[f"POST {path.replace('{tenant}', '{}')}"].items()
        # The document around it names the owner; a file has no fields within fields.
        if found.get("in") != "query"
        and field != more.get("owner", "tenant")
        and found["type"] not in {"object", "array"}
    }
    fields = {field: _check(field, found) for field, found in facts.items()}
    required = frozenset(field for field, found in facts.items() if found.get("required"))
    return Kind(name, path, named_by, fields, required, key, **more)


POOL = _kind("pool", "pools/", ("name",), "name")
QUOTA = _kind("quota", "quotas/", ("pool", "resource"), "id", listed="quotas")
MEMBER = _kind("member", "tenants/{tenant}/members/", ("username",), "username", listed="members", versioned=False)
LIMIT_RANGE = _kind("limit-range", "limit-ranges/", ("pool", "field"), "id", listed="limit_ranges")
MEMBER_LIMIT = _kind("member-limit", "member-limits/", ("member", "resource"), "id", listed="member_limits")
ORGANISATION_QUOTA = _kind(
    "organisation-quota", "organisation-quotas/", ("pool", "resource"), "id", listed="quotas", owner="organisation"
)
TENANT = _kind("tenant", "tenants/", ("slug",), "slug", within=(QUOTA, MEMBER, LIMIT_RANGE, MEMBER_LIMIT))
ORGANISATION = _kind("organisation", "organisations/", ("slug",), "slug", within=(ORGANISATION_QUOTA,))
DOCUMENTS = {"Pool": POOL, "Organisation": ORGANISATION, "Tenant": TENANT}


@dataclass(frozen=True)
class Identity:
    """Identity of one object, with its owner's slug if it has one."""

    kind: Kind
    owner: str | None
    names: tuple[str | None, ...]

    def __str__(self) -> str:
        parts = [self.owner, *("*" if name is None else name for name in self.names)]
        return "/".join([self.kind.name, *(part for part in parts if part is not None)])


def identity(kind: Kind, values: Mapping[str, Any], owner: str | None) -> Identity:
    """Return the identity in these values; a quota without a pool covers all pools."""
    return Identity(kind, owner, tuple(values.get(name) for name in kind.named_by))
