"""Usage reports: GPU-hours reserved and used, and their cost."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import QuerySet, Subquery
from django.utils import timezone

from apps.quotas.models import Tenant
from apps.scheduling.core.metering import MILLIONTHS, PER_GPU_HOUR, Piece, Tariff, cost, price_at
from apps.scheduling.models import Claim, UsedHour
from apps.scheduling.services.charging.metering import (
    MeteredClaim,
    PriceBook,
    between,
    gpu_hours,
    metered,
    microseconds,
)
from gpucloud.errors import Invalid

# A year and its leap day; the ledger of more is a task for a data warehouse.
LONGEST = timedelta(days=366)
US_PER_MS = 1000
MONEY = Decimal("0.0001")


class PeriodInvalid(Invalid):
    """The period is empty, or longer than a report may be."""

    code = "period-invalid"
    title = "Not a period for a report"


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

    def use(self, gpu_time_ms: int, hour_us: int, prices: Tariff) -> None:
        """Add the use within an hour; no price changes within one."""
        core_us = 100 * gpu_time_ms * US_PER_MS
        self.used_us += core_us
        self.used_cost += core_us * price_at(prices, hour_us)

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
    """The key of a row; it has no claim if rows are by model."""

    tenant: str
    pool: str
    gpu_model: str
    claim: str | None = None
    name: str | None = None


def _money(core_us_millionths: int) -> str:
    return f"{(Decimal(core_us_millionths) / PER_GPU_HOUR / MILLIONTHS).quantize(MONEY):f}"


def usage_report(
    *,
    tenants: Iterable[Tenant],
    begin: datetime,
    end: datetime,
    by_claim: bool = False,
    after: UUID | None = None,
    limit: int | None = None,
) -> dict[str, Any]:
    """Return what these tenants reserved and used, a row for each pool and model (or each claim), and their sums.

    Time that has not come yet counts nothing. Used time is counted by whole hours: those that begin in the period. By
    claim it is a page of `limit` claims, oldest first, `after` one; `after` in the answer is the claim after which the
    next page begins, None at the end. The sums are the page's. Raises PeriodInvalid.
    """
    if not begin < end or end - begin > LONGEST:
        raise PeriodInvalid(f"`from` must be before `to`, by {LONGEST.days} days at most.", max_days=LONGEST.days)
    whose, book, sums = list(tenants), PriceBook(), defaultdict[Line, Sums](Sums)
    until = max(begin, min(end, timezone.now()))
    claims: QuerySet[Claim] = Claim.objects.filter(tenant__in=whose)
    last: UUID | None = None
    if by_claim:
        claims, last = _page(between(claims, begin=begin, end=until), after, limit)
    for item in metered(claims, begin=begin, end=until):
        for piece in item.pieces:
            sums[_line(item, piece, by_claim)].reserve(piece, book.tariff(piece.model, item.pool_id))
    if not by_claim:
        _add_used(sums, whose, book, begin, end)
    ordered = sorted(sums, key=lambda line: tuple(text or "" for text in asdict(line).values()))
    return {
        "from": begin,
        "to": end,
        "currency": settings.CURRENCY,
        "rows": [{**asdict(line), **sums[line].as_text()} for line in ordered],
        "total": _total(sums.values()).as_text(),
        "after": last,
    }


def _page(claims: QuerySet[Claim], after: UUID | None, limit: int | None) -> tuple[QuerySet[Claim], UUID | None]:
    """Return a page of claims, and the last one's uid if there are more."""
    ordered = claims.order_by("pk")
    if after is not None:
        ordered = ordered.filter(pk__gt=Subquery(Claim.objects.filter(uid=after).values("pk")[:1]))
    found = list(ordered.values_list("pk", "uid")[: limit + 1] if limit else ordered.values_list("pk", "uid"))
    page = found[:limit]
    return claims.filter(pk__in=[key for key, _ in page]), page[-1][1] if len(found) > len(page) else None


def _line(item: MeteredClaim, piece: Piece, by_claim: bool) -> Line:
    claim = (str(item.uid), item.name) if by_claim else (None, None)
    return Line(item.tenant, item.pool, piece.model, *claim)


def _add_used(
    sums: defaultdict[Line, Sums], tenants: list[Tenant], book: PriceBook, begin: datetime, end: datetime
) -> None:
    hours = UsedHour.objects.filter(tenant__in=tenants, hour__gte=begin, hour__lt=end)
    for slug, pool_id, pool, model, hour, gpu_time_ms in hours.values_list(
        "tenant__slug", "pool_id", "pool__name", "gpu_model", "hour", "gpu_time_ms"
    ).iterator(chunk_size=5000):
        sums[Line(slug, pool, model)].use(gpu_time_ms, microseconds(hour), book.tariff(model, pool_id))


def _total(parts: Iterable[Sums]) -> Sums:
    total = Sums()
    for part in parts:
        for name, value in asdict(part).items():
            setattr(total, name, getattr(total, name) + value)
    return total
