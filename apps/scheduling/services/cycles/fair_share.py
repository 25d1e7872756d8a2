"""The tenants of a pool as the queue's order sees them: weight, share, what they hold and held. Reads only."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Q

from apps.quotas.models import Pool, Tenant
from apps.quotas.models.pool import FairShare
from apps.quotas.principals import Principal
from apps.scheduling.core.estimates import Standing as PoolStanding
from apps.scheduling.core.fair_share import NO_PAST, Past, Standing, standings
from apps.scheduling.core.queue import Amounts
from apps.scheduling.models import Claim, PastUseMark
from apps.scheduling.services.cycles.queue_order import capacity_of, holdings, read_past
from apps.scheduling.services.fleet.devices import read_fleet


@dataclass(frozen=True, slots=True)
class TenantShare:
    """One tenant in a pool. `order`: by this number the queue goes, the least first, at equal priority."""

    tenant: Tenant
    waiting: int
    held: Amounts
    past: Past
    order: float
    standing: Standing

    @property
    def held_gpus(self) -> float:
        """The core that it holds now, in GPUs."""
        return self.held.core_percent / 100

    @property
    def past_gpus(self) -> float:
        """The core that it held on average, in GPUs."""
        return self.past.core_percent / 100

    @property
    def share_percent(self) -> float:
        """Its weight, in percent of the weights of all tenants here."""
        return 100 * self.standing.share

    @property
    def usage_percent(self) -> float:
        """Its past use, in percent of that of all tenants here."""
        return 100 * self.standing.usage

    @property
    def order_percent(self) -> float:
        """Its dominant share of the pool, now and past together, divided by its weight."""
        return 100 * self.order


@dataclass(frozen=True, slots=True)
class FairShareTable:
    """The visible tenants of a pool, next first. `counted_to`: the moment of past use; None: not counted yet."""

    pool: Pool
    counted_to: datetime | None
    tenants: list[TenantShare]

    @property
    def remembers(self) -> bool:
        """True if past use counts."""
        return self.pool.fair_share == FairShare.DECAYED


def read_table(pool: Pool, principal: Principal) -> FairShareTable:
    """Return the tenants that hold or held something in the pool or wait there, as far as the caller may see them."""
    held, past = holdings(pool), read_past(pool)
    waiting = dict(Claim.objects.in_queue().filter(pool=pool).order_by().values_list("tenant_id").annotate(Count("pk")))
    tenants = {
        str(tenant.pk): tenant
        for tenant in Tenant.objects.filter(Q(pk__in=[*map(int, held.keys() | past.keys()), *waiting]))
    }
    capacity, weights = capacity_of(read_fleet(pool)), {key: tenant.weight for key, tenant in tenants.items()}
    usages = {key: Amounts().share_of(capacity, 1, past.get(key, NO_PAST)) for key in tenants}
    among = standings(usages, weights)
    found = [
        TenantShare(
            tenant,
            waiting.get(tenant.pk, 0),
            held.get(key, Amounts()),
            past.get(key, NO_PAST),
            held.get(key, Amounts()).share_of(capacity, tenant.weight, past.get(key, NO_PAST).rounded()),
            among[key],
        )
        for key, tenant in tenants.items()
        if principal.is_operator or tenant.pk in principal.roles
    ]
    found.sort(key=lambda one: (one.order, one.tenant.slug))
    mark = PastUseMark.objects.filter(pool=pool).first() if pool.fair_share == FairShare.DECAYED else None
    return FairShareTable(pool, None if mark is None else mark.at, found)


def explain_share(standing: PoolStanding, tenant: str, waiting: Iterable[str], *, half_life_seconds: int) -> str:
    """Return what the tenant of a waiting claim holds and held, and how many waiting tenants go first by it."""
    queue = standing.queue((), now=0)
    held, past = standing.held.get(tenant, Amounts()), standing.past.get(tenant, NO_PAST)
    mine = queue.share(tenant)
    before = sum(queue.share(other) < mine for other in set(waiting) if other != tenant)
    first = "no other waiting tenant has less"
    if before:
        first = f"{before} waiting tenants have less and go first" if before > 1 else "a tenant with less goes first"
    return (
        f"Tenant {tenant} holds {held.core_percent / 100:.2f} GPUs and held {past.core_percent / 100:.2f} on average "
        f"(half-life {half_life_seconds / 86_400:g} d): {100 * mine:.1f} % of the pool for each unit of its weight of "
        f"{standing.weights.get(tenant, 1)}; {first}"
    )
