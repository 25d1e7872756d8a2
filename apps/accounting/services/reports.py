"""Usage reports: GPU-hours reserved and used, their cost, their trend and a forecast."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import QuerySet, Subquery
from django.utils import timezone

from apps.accounting.services.trends import Days, Forecast
from apps.quotas.models import Tenant
from apps.quotas.principals import VIA
from apps.quotas.services.organisation_quotas import organisations_above
from apps.scheduling.core.metering import MILLIONTHS, PER_GPU_HOUR, Piece, Tariff, cost, price_at
from apps.scheduling.models import Claim, UsedHour
from apps.scheduling.services.charging.metering import (
    MeteredClaim,
    PriceBook,
    between,
    gpu_hours,
    metered,
)
from apps.scheduling.services.fleet.reserved import microseconds
from gpucloud.errors import Invalid

# A year and its leap day; the ledger of more is a task for a data warehouse.
LONGEST = timedelta(days=366)
US_PER_MS = 1000
MONEY = Decimal("0.0001")


class PeriodInvalid(Invalid, code="period-invalid", title="Not a period for a report"):
    """The period is empty, or longer than a report may be."""


@dataclass(slots=True)
class Sums:
    """The sums of one row, in percent-microseconds, and these × millionths of the currency.

    Divided once, when shown.
    """

    reserved_us: int = 0
    reserved_cost: int = 0
    unpriced_us: int = 0
    used_us: int = 0
    used_cost: int = 0

    def reserve(self, piece: Piece, prices: Tariff) -> None:
        """Add a piece that was held."""
        costs, unpriced = cost(piece, prices)
        self.reserved_us += piece.core_us
        self.reserved_cost += costs
        self.unpriced_us += unpriced

    def use(self, used: "Used", prices: Tariff) -> None:
        """Add the use within an hour; no price changes within one."""
        self.used_us += used.core_us
        self.used_cost += used.core_us * price_at(prices, used.hour_us)

    def as_text(self) -> dict[str, str]:
        """Return the sums as decimal text."""
        return {
            "gpu_hours_reserved": gpu_hours(self.reserved_us),
            "gpu_hours_used": gpu_hours(self.used_us),
            "cost_reserved": _money(self.reserved_cost),
            "cost_used": _money(self.used_cost),
            "gpu_hours_unpriced": gpu_hours(self.unpriced_us),
        }


@dataclass(frozen=True, slots=True)
class Line:
    """The key of a row; it has an owner by person or claim, and a claim by claim only.

    By organisation it has an organisation instead of a tenant, or neither: tenants without one.
    """

    tenant: str | None
    pool: str
    gpu_model: str
    organisation: str | None = None
    owner: str | None = None
    claim: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Used:
    """The GPU time that was used within an hour."""

    line: Line
    pool_id: int
    hour_us: int
    core_us: int


def _money(core_us_millionths: int) -> str:
    return f"{(Decimal(core_us_millionths) / PER_GPU_HOUR / MILLIONTHS).quantize(MONEY):f}"


class _Count:
    """The sums of a report's rows and days."""

    def __init__(self, by: str, tenants: Iterable[Tenant]) -> None:
        self.by, self.book = by, PriceBook()
        self.sums = defaultdict[Line, Sums](Sums)
        # Organisations count what is below them: their rows overlap, so the sum of all is counted beside.
        self.total = Sums()
        self.days = Days()
        self._above = organisations_above(tenants) if by == "organisation" else {}

    def reserve(self, claims: Iterable[MeteredClaim]) -> None:
        """Add what claims held."""
        for item in claims:
            for piece in item.pieces:
                tariff = self.book.tariff(piece.model, item.pool_id)
                for sums in self._of(_line(item, piece, self.by)):
                    sums.reserve(piece, tariff)
                self.days.reserve(piece)

    def use(self, hours: Iterable["Used"]) -> None:
        """Add what was used, which is known by model only."""
        for used in hours:
            self.days.use(used.hour_us, used.core_us)
            if self.by in ("model", "organisation"):
                tariff = self.book.tariff(used.line.gpu_model, used.pool_id)
                for sums in self._of(used.line):
                    sums.use(used, tariff)

    def _of(self, line: Line) -> Iterator[Sums]:
        """Yield the sums to which the line of a tenant counts."""
        yield self.total
        if self.by != "organisation":
            yield self.sums[line]
            return
        for slug in self._above.get(line.tenant or "", [None]):
            yield self.sums[replace(line, tenant=None, organisation=slug)]


def usage_report(
    *,
    tenants: Iterable[Tenant],
    begin: datetime,
    end: datetime,
    by: str = "model",
    after: UUID | None = None,
    limit: int | None = None,
) -> dict[str, Any]:
    """Return what these tenants reserved and used, a row for each pool and model (also for each person, or claim).

    By organisation a row has all that is below it, so rows overlap, and the total counts each tenant once.

    Time that has not come yet counts nothing. Used time is counted by whole hours: those that begin in the period. By
    claim it is a page of `limit` claims, oldest first, `after` one; `after` in the answer is the claim after which the
    next page begins, None at the end. The sums are the page's, and it has no trend. Raises PeriodInvalid.
    """
    if not begin < end or end - begin > LONGEST:
        raise PeriodInvalid(f"`from` must be before `to`, by {LONGEST.days} days at most.", max_days=LONGEST.days)
    whose, now = list(tenants), timezone.now()
    until = max(begin, min(end, now))
    claims: QuerySet[Claim] = Claim.objects.filter(tenant__in=whose)
    count, last = _Count(by, whose), None
    if by == "claim":
        claims, last = page_of_claims(between(claims, begin=begin, end=until), after, limit)
    count.reserve(metered(claims, begin=begin, end=until))
    if by != "claim":
        count.use(_used(whose, begin, end))
    sums, days, total = count.sums, count.days, count.total
    ordered = sorted(sums, key=lambda line: tuple(text or "" for text in (line.organisation, *asdict(line).values())))
    return {
        "from": begin,
        "to": end,
        "currency": settings.CURRENCY,
        "rows": [{**asdict(line), **sums[line].as_text()} for line in ordered],
        "total": total.as_text(),
        "trend": [] if by == "claim" else days.rows(begin, until),
        "forecast": None if by == "claim" else _expected(total, days.forecast(begin, until, now)),
        "after": last,
    }


def page_of_claims(
    claims: QuerySet[Claim], after: UUID | None, limit: int | None
) -> tuple[QuerySet[Claim], UUID | None]:
    """Return a page of claims, and the last one's uid if there are more."""
    ordered = claims.order_by("pk")
    if after is not None:
        ordered = ordered.filter(pk__gt=Subquery(Claim.objects.filter(uid=after).values("pk")[:1]))
    found = list(ordered.values_list("pk", "uid")[: limit + 1] if limit else ordered.values_list("pk", "uid"))
    page = found[:limit]
    return claims.filter(pk__in=[key for key, _ in page]), page[-1][1] if len(found) > len(page) else None


def _line(item: MeteredClaim, piece: Piece, by: str) -> Line:
    line = Line(item.tenant, item.pool, piece.model)
    if by == "person":
        return replace(line, owner=item.owner.partition(VIA)[0])
    return replace(line, owner=item.owner, claim=str(item.uid), name=item.name) if by == "claim" else line


def _used(tenants: list[Tenant], begin: datetime, end: datetime) -> Iterator[Used]:
    hours = UsedHour.objects.filter(tenant__in=tenants, hour__gte=begin, hour__lt=end)
    for slug, pool_id, pool, model, hour, gpu_time_ms in hours.values_list(
        "tenant__slug", "pool_id", "pool__name", "gpu_model", "hour", "gpu_time_ms"
    ).iterator(chunk_size=5000):
        yield Used(Line(slug, pool, model), pool_id, microseconds(hour), 100 * gpu_time_ms * US_PER_MS)


def _expected(total: Sums, forecast: Forecast | None) -> dict[str, Any] | None:
    """Return the forecast; what is added costs as much for an hour as the period did so far."""
    if forecast is None:
        return None
    more = total.reserved_cost * forecast.added_us // total.reserved_us if total.reserved_us else 0
    return {
        "to": forecast.to,
        "gpu_hours_reserved": gpu_hours(forecast.reserved_us),
        "cost_reserved": _money(total.reserved_cost + more),
    }
