"""Ratio between the sum of a pool's quotas and its GPUs' capacity.

A tenant's part in a pool is the least `hard` of its quotas that cover it: the pool's own, and the one for all pools,
which counts in full in each, because all of it may be claimed there. Only growth is refused: sums from before the
ratio, or before a GPU was removed, stay. GPU capacity itself is never allocated twice, whatever the ratio.
"""

import math
from collections.abc import Iterable
from typing import Any

from django.db.models import Q

from apps.quotas.models import Pool, Resource, ResourceQuota
from apps.quotas.providers import pool_capacity
from gpucloud.errors import Conflict

RATIOS = {Resource.CORE_PERCENT: "core_overcommit_percent", Resource.MEMORY_MIB: "memory_overcommit_percent"}
# Sum by pool and resource; infinite if a tenant is unlimited.
Promises = dict[tuple[int, str], float]


class Overcommitted(Conflict, code="overcommitted", title="More than the pool may promise"):
    """The pool's quotas would exceed its ratio."""


def lock(pool: Pool | None) -> list[Pool]:
    """Lock the pool, or all, before a change of quotas: a concurrent change of the ratio would miss it."""
    pools = Pool.objects.filter(pk=pool.pk) if pool else Pool.objects.all()
    return list(pools.select_for_update(no_key=True).order_by("pk"))


def promises(pool: Pool | None) -> Promises:
    """Return the present sums of the pool, or of all, where there is a ratio, under the pools' locks."""
    return {
        (row.pk, resource): _sum_promised(row, resource)
        for row in lock(pool)
        for resource, ratio in RATIOS.items()
        if getattr(row, ratio) is not None
    }


def refuse_growth(before: Promises) -> None:
    """Compare the sums after a change of quotas, in its transaction. Raises Overcommitted."""
    for pool in Pool.objects.filter(pk__in={pk for pk, _ in before}).order_by("pk"):
        refuse(pool, (name for pk, name in before if pk == pool.pk and _sum_promised(pool, name) > before[pk, name]))


def refuse(pool: Pool, resources: Iterable[str] = tuple(RATIOS)) -> None:
    """Raise Overcommitted if the sum of a resource exceeds the pool's ratio."""
    for resource in resources:
        ratio = getattr(pool, RATIOS[Resource(resource)])
        promised = _sum_promised(pool, resource)
        if ratio is None or promised * 100 <= (has := pool_capacity.get().of_pool(pool)[resource]) * ratio:
            continue
        told = "Without a limit" if promised == math.inf else int(promised)
        facts: dict[str, Any] = {"promised": None if promised == math.inf else int(promised)}
        raise Overcommitted(
            f"{told} of {resource} would be promised in pool {pool.name}, which has {has} and may promise "
            f"{ratio} percent of it: lower a quota, or raise {RATIOS[Resource(resource)]}.",
            pool=pool.name,
            resource=resource,
            capacity=has,
            overcommit_percent=ratio,
            **facts,
        )


def _sum_promised(pool: Pool, resource: str) -> float:
    rows = ResourceQuota.objects.filter(Q(pool=pool) | Q(pool=None), resource=resource)
    least: dict[int, float] = {}
    for tenant_id, hard in rows.values_list("tenant_id", "hard"):
        least[tenant_id] = min(least.get(tenant_id, math.inf), math.inf if hard is None else hard)
    return sum(least.values())
