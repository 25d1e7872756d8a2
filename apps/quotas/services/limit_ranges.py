"""Bounds and defaults of the fields of a tenant's claims."""

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet

from apps.quotas.models import LimitRange, Pool, Tenant
from apps.quotas.models.limits import MOST, ClaimField
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from apps.quotas.services.names import NameTaken, refuse_taken
from gpucloud.api import etags
from gpucloud.errors import Invalid
from gpucloud.fastpath.compiled_queries import compiled_query

SETTABLE = ("minimum", "maximum", "default")
# Fields that a claim must have if no range has a default.
NEEDED = (ClaimField.CORE_REQUEST, ClaimField.MEMORY_MIB)


class OutOfRange(Invalid, code="out-of-range", title="Outside of what a claim may ask for"):
    """A field is outside of its bounds in the tenant."""


class FieldMissing(Invalid, code="field-missing", title="A field is missing"):
    """A required field is missing, and the tenant has no default for it."""


class RangeInvalid(Invalid, code="range-invalid", title="Not a range"):
    """minimum, default and maximum are out of order, or above any claim's bounds."""


def fill(tenant: Tenant, pool: Pool, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the claim's fields with the tenant's defaults, checked. Raises FieldMissing, OutOfRange.

    The pool's own default takes precedence over the one for every pool. A claim must keep to both ranges' bounds.
    """
    ranges = _covering(tenant, pool)
    defaults = {row.field: row.default for row in ranges if row.default is not None}
    core_limit = None if "core_limit" in asked else defaults.pop(ClaimField.CORE_LIMIT, None)
    filled = {**defaults, **asked}
    for field in NEEDED:
        if field not in filled:
            raise FieldMissing(f"Give {field}: tenant {tenant.slug} has no default for it.", field=str(field))
    filled.setdefault("core_limit", max(filled["core_request"], core_limit or 0))
    filled.setdefault("gpu_count", 1)
    filled.setdefault("time_limit_seconds", None)
    _check(ranges, filled)
    return filled


def check(tenant: Tenant, pool: Pool, values: Mapping[str, Any]) -> None:
    """Check the new fields of a claim. Raises OutOfRange."""
    _check(_covering(tenant, pool), values)


def _covering(tenant: Tenant, pool: Pool) -> list[LimitRange]:
    """Return the row for every pool before the pool's own, so that the latter wins in a mapping by field."""
    return sorted(_ranges_of(tenant.pk, pool.pk), key=lambda row: row.pool_id is not None)


@compiled_query
def _ranges_of(tenant: Any, pool: Any) -> QuerySet[LimitRange]:
    return LimitRange.objects.filter(Q(pool=pool) | Q(pool=None), tenant=tenant).select_related("pool")


def _check(ranges: list[LimitRange], values: Mapping[str, Any]) -> None:
    for row in ranges:
        if row.field not in values:
            continue
        value = values[row.field]
        # No time limit exceeds every maximum.
        low = row.minimum is not None and value is not None and value < row.minimum
        high = row.maximum is not None and (value is None or value > row.maximum)
        if low or high:
            where = f"in pool {row.pool.name}" if row.pool else "in any pool"
            bound = f"at least {row.minimum}" if low else f"at most {row.maximum}"
            raise OutOfRange(
                f"{row.field} {'unlimited' if value is None else value} is out of range: {bound} allowed, {where}",
                field=row.field,
                requested=value,
                minimum=row.minimum,
                maximum=row.maximum,
                pool=row.pool.name if row.pool else None,
            )


@transaction.atomic
def create_range(*, principal: Principal, tenant: Tenant, pool: Pool | None, field: str, **bounds: Any) -> LimitRange:
    """Bound a field of the tenant's new claims. Raises NameTaken, RangeInvalid."""
    principal.require_operator()
    row = LimitRange(tenant=tenant, pool=pool, field=field, **bounds)
    _refuse_disorder(row)

    def describe() -> NameTaken:
        taken = LimitRange.objects.get(tenant=tenant, pool=pool, field=field)
        return NameTaken(
            f"{tenant.slug} already has a range of {field} for {pool or 'all pools'}: change range {taken.pk}.",
            limit_range=taken.pk,
        )

    with refuse_taken(describe):
        row.save()
    _note(row, principal=principal, action="limit-range.create", before=None)
    return row


@transaction.atomic
def change_range(
    *, principal: Principal, row: LimitRange, versions: etags.Versions = None, **bounds: int | None
) -> LimitRange:
    """Set bounds or default. Raises RangeInvalid, PreconditionFailed."""
    principal.require_operator()
    row = etags.lock(row, versions, "tenant", "pool")
    before = _facts(row)
    for name, value in bounds.items():
        setattr(row, name, value)
    _refuse_disorder(row)
    row.change(**bounds)
    _note(row, principal=principal, action="limit-range.set", before=before)
    return row


@transaction.atomic
def delete_range(*, principal: Principal, row: LimitRange, versions: etags.Versions = None) -> None:
    """Remove the range. Raises PreconditionFailed."""
    principal.require_operator()
    row = etags.lock(row, versions, "tenant", "pool")
    _note(row, principal=principal, action="limit-range.delete", before=_facts(row))
    row.delete()


def _refuse_disorder(row: LimitRange) -> None:
    given = [value for value in (row.minimum, row.default, row.maximum) if value is not None]
    if not given or given != sorted(given):
        raise RangeInvalid("Give at least one of them, with minimum ≤ default ≤ maximum.", **_facts(row))
    if given[-1] > MOST[row.field]:
        raise RangeInvalid(
            f"{given[-1]} is above {MOST[row.field]}, the most of {row.field} that any claim may ask for.",
            most=MOST[row.field],
            **_facts(row),
        )


def _facts(row: LimitRange) -> dict[str, int | None]:
    return {name: getattr(row, name) for name in SETTABLE}


def _note(row: LimitRange, *, principal: Principal, action: str, before: dict[str, int | None] | None) -> None:
    deleted = action.endswith("delete")
    audit.record(
        principal,
        action,
        row,
        before=before,
        after=None if deleted else {"pool": row.pool and row.pool.name, "field": row.field, **_facts(row)},
    )
