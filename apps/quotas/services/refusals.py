"""Refusals of charges, with amounts in words."""

from collections.abc import Iterable
from typing import Any

from apps.quotas.models import OrganisationQuota, Resource, ResourceQuota
from apps.quotas.models.resource import IN_MIB, profile_of
from gpucloud.errors import Conflict

NAMES = {
    Resource.CORE_PERCENT: "Core",
    Resource.MEMORY_MIB: "Memory",
    Resource.VGPUS: "vGPU",
    Resource.GPUS: "Whole-GPU",
    Resource.HOST_MEMORY_MIB: "Host-memory",
}


def resource_in_words(resource: str) -> str:
    """Return how a refusal begins that is about this resource."""
    return f"{profile} instance" if (profile := profile_of(resource)) else NAMES[Resource(resource)]


def amount_in_words(resource: str, amount: int) -> str:
    """Return an amount with its unit: `60 %`, `8 GiB`, `1536 MiB`, `2`."""
    if resource == Resource.CORE_PERCENT:
        return f"{amount} %"
    if resource in IN_MIB:
        return f"{amount} MiB" if amount % 1024 or not amount else f"{amount // 1024} GiB"
    return str(amount)


def _shortage(resource: str, *, requested: int, free: int, hard: int) -> str:
    words = (amount_in_words(resource, amount) for amount in (requested, free, hard))
    return "requested {}, {} of {} available".format(*words)


class QuotaExceeded(Conflict, code="quota-exceeded", title="Quota exceeded"):
    """The tenant's quota has no room for this; `shortages` lists every resource that is short, the first one as well.

    The other facts are those of the first.
    """

    def __init__(self, *, resource: str, pool: str | None, hard: int, used: int, requested: int, **facts: Any) -> None:
        organisation = facts.get("organisation")
        where = (f" of organisation {organisation}" if organisation else "") + (f" in pool {pool}" if pool else "")
        free = facts.get("free", max(0, hard - used))
        lent = f" ({amount_in_words(resource, facts['lent'])} lent to its cohort)" if facts.get("lent") else ""
        lent = f" (its tenants hold {amount_in_words(resource, used)} together)" if organisation else lent
        short = _shortage(resource, requested=requested, free=free, hard=hard)
        self._explain(
            f"{resource_in_words(resource)} quota{where} exceeded: {short}{lent}",
            free,
            resource=resource,
            pool=pool,
            hard=hard,
            used=used,
            requested=requested,
            **facts,
        )

    def _explain(self, detail: str, available: int, **facts: Any) -> None:
        short = {name: facts.get(name) for name in ("resource", "pool", "organisation", "hard", "used", "requested")}
        shortages = [{"code": self.code, **short, "available": available, "detail": detail}]
        super().__init__(detail, **facts, shortages=shortages)

    @property
    def shortages(self) -> list[dict[str, Any]]:
        """The short resources: `code`, `resource`, `pool`, `organisation` (if it is one's quota), `hard`, `used`,
        `requested`, `available`, `detail` each.
        """
        found: list[dict[str, Any]] = self.facts["shortages"]
        return found

    def join(self, others: "Iterable[QuotaExceeded]") -> "QuotaExceeded":
        """Name what the others are short of, too; return this error."""
        for other in others:
            self.shortages.extend(other.shortages)
        self.detail = "; ".join(item["detail"] for item in self.shortages)
        self.args = (self.detail,)
        return self


def quota_exceeded(quota: ResourceQuota | OrganisationQuota, requested: int, **facts: Any) -> QuotaExceeded:
    """Return the refusal with this row's numbers. `facts`: corrections by lending and borrowing."""
    if isinstance(quota, OrganisationQuota):
        facts["organisation"] = quota.organisation.slug
    return QuotaExceeded(
        resource=quota.resource,
        pool=quota.pool.name if quota.pool else None,
        hard=quota.hard or 0,
        used=quota.used,
        requested=requested,
        **facts,
    )


class MemberLimitExceeded(QuotaExceeded, code="member-limit-exceeded", title="Member's limit exceeded"):
    """The member may hold no more of the resource, even if the tenant's quota has room."""

    def __init__(self, *, resource: str, hard: int, used: int, requested: int) -> None:
        free = max(0, hard - used)
        short = _shortage(resource, requested=requested, free=free, hard=hard)
        self._explain(
            f"{resource_in_words(resource)} limit of this member exceeded: {short} (set by the tenant's admins)",
            free,
            resource=resource,
            hard=hard,
            used=used,
            requested=requested,
        )
