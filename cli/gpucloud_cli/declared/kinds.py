"""Kinds that can be declared: their fields, allowed values, and API paths.

A file has documents of the kinds Tenant and Pool; a tenant's document may contain lists of objects within it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpucloud_cli import amounts
from gpucloud_cli.fields import AUDIT, FAILOVER, IDLE_RULES, LIMITED, PLACEMENT, POLICIES, RESOURCES, ROLES

API_VERSION = "gpucloud.io/v1"

Check = Callable[[Any], Any]


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


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of object that files can declare."""

    name: str
    path: str
    # Fields that identify it within its tenant (or the platform), and all its fields.
    named_by: tuple[str, ...]
    fields: Mapping[str, Check]
    required: frozenset[str]
    # The API's name of one object: its path ends with this field of the row.
    key: str
    # The list of a tenant's document that contains it; None for documents of their own.
    listed: str | None = None
    versioned: bool = True


POOL = Kind(
    "pool",
    "pools/",
    ("name",),
    {
        "name": text,
        "description": text,
        "sharing_policy": one_of(tuple(POLICIES.choices)),
        "core_ceiling": number,
        "parts": number,
        "placement_policy": one_of(tuple(PLACEMENT.choices)),
        "core_overcommit_percent": number_or_null,
        "memory_overcommit_percent": number_or_null,
        "audit_policy": one_of(tuple(AUDIT.choices)),
        "idle_rule": one_of(tuple(IDLE_RULES.choices)),
        "idle_seconds": duration,
        "unused_seconds": duration_or_null,
        "idle_grace_seconds": duration,
        "failover_policy": one_of(tuple(FAILOVER.choices)),
        "failover_after_seconds": duration,
        "repair_drift": truth,
        "lend_reserved": truth,
        "reclaim_idle": truth,
        "preemption_grace_seconds": duration_or_null,
        "preempt_by_priority": truth,
        "patience_seconds": duration_or_null,
    },
    frozenset({"name"}),
    "name",
)
TENANT = Kind(
    "tenant",
    "tenants/",
    ("slug",),
    {"slug": text, "name": text, "weight": number, "cohort": text_or_null},
    frozenset({"slug"}),
    "slug",
)
QUOTA = Kind(
    "quota",
    "quotas/",
    ("pool", "resource"),
    {
        "pool": text_or_null,
        "resource": one_of(tuple(RESOURCES.choices)),
        "hard": limit,
        "borrowing_limit": limit,
        "lending_limit": limit,
    },
    frozenset({"resource", "hard"}),
    "id",
    listed="quotas",
)
MEMBER = Kind(
    "member",
    "tenants/{tenant}/members/",
    ("username",),
    {"username": text, "role": one_of(tuple(ROLES.choices))},
    frozenset({"username", "role"}),
    "username",
    listed="members",
    versioned=False,
)
LIMIT_RANGE = Kind(
    "limit-range",
    "limit-ranges/",
    ("pool", "field"),
    {
        "pool": text_or_null,
        "field": one_of(tuple(LIMITED.choices)),
        "minimum": limit,
        "maximum": limit,
        "default": limit,
    },
    frozenset({"field"}),
    "id",
    listed="limit_ranges",
)
MEMBER_LIMIT = Kind(
    "member-limit",
    "member-limits/",
    ("member", "resource"),
    {"member": text_or_null, "resource": one_of(tuple(RESOURCES.choices)), "hard": limit},
    frozenset({"resource", "hard"}),
    "id",
    listed="member_limits",
)
DOCUMENTS = {"Pool": POOL, "Tenant": TENANT}
WITHIN_TENANTS = (QUOTA, MEMBER, LIMIT_RANGE, MEMBER_LIMIT)


@dataclass(frozen=True)
class Identity:
    """Identity of one object, with its tenant if it has one."""

    kind: Kind
    tenant: str | None
    names: tuple[str | None, ...]

    def __str__(self) -> str:
        parts = [self.tenant, *("*" if name is None else name for name in self.names)]
        return "/".join([self.kind.name, *(part for part in parts if part is not None)])


def identity(kind: Kind, values: Mapping[str, Any], tenant: str | None) -> Identity:
    """Return the identity in these values; a quota without a pool covers all pools."""
    return Identity(kind, tenant, tuple(values.get(name) for name in kind.named_by))
