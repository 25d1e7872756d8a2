"""Charges as FOCUS 1.2 has them: a row for each claim, GPU model, day (UTC) and price.

Source of the columns: github.com/FinOps-Open-Cost-and-Usage-Spec/FOCUS_Spec, `specification/columns`. Quantities are in
GPU-hours and costs in the currency of the installation, with 12 decimal places. What is cut off of a row is carried to
the next one, so that the rows of a page add up to what a usage report says.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import UUID

from django.conf import settings
from django.utils import timezone

from apps.accounting.services.reports import LONGEST, PeriodInvalid, page_of_claims
from apps.quotas.models import Tenant
from apps.scheduling.core.metering import MILLIONTHS, PER_GPU_HOUR, Piece, Tariff
from apps.scheduling.models import Claim
from apps.scheduling.services.charging.metering import MeteredClaim, PriceBook, between, metered

DAY_US = 24 * 3600 * 10**6
PLACES = Decimal("0.000000000001")
UNIT, SELLER = "GPU-Hours", "gpucloud"
COLUMNS = (
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingAccountType", "BillingCurrency",
    "BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency",
    "ChargePeriodEnd", "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit", "ContractedCost",
    "ContractedUnitPrice", "EffectiveCost", "InvoiceIssuerName", "ListCost", "ListUnitPrice", "PricingCategory",
    "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "RegionId", "RegionName", "ResourceId",
    "ResourceName", "ResourceType", "ServiceCategory", "ServiceName", "ServiceSubcategory", "SkuId", "SkuPriceId",
    "SubAccountId", "SubAccountName", "Tags", "x_GpuModel", "x_Owner", "x_Pool",
)  # fmt: skip
FIXED = {
    "BillingAccountType": "Tenant",
    "ChargeCategory": "Usage",
    "ChargeFrequency": "Usage-Based",
    "ConsumedUnit": UNIT,
    "InvoiceIssuerName": SELLER,
    "PricingCategory": "Standard",
    "PricingUnit": UNIT,
    "ProviderName": SELLER,
    "PublisherName": SELLER,
    "ResourceType": "Claim",
    "ServiceCategory": "Compute",
    "ServiceName": "GPU shares",
    "ServiceSubcategory": "Other (Compute)",
}


def focus_page(
    *, tenants: Iterable[Tenant], begin: datetime, end: datetime, after: UUID | None = None, limit: int
) -> dict[str, Any]:
    """Return the rows of the `limit` oldest claims `after` one; `after` in the answer: that of the next page.

    A period that is not over has rows until now. Raises PeriodInvalid.
    """
    if not begin < end or end - begin > LONGEST:
        raise PeriodInvalid(f"`from` must be before `to`, by {LONGEST.days} days at most.", max_days=LONGEST.days)
    until = max(begin, min(end, timezone.now()))
    claims, last = page_of_claims(
        between(Claim.objects.filter(tenant__in=list(tenants)), begin=begin, end=until), after, limit
    )
    rows = list(_rows(metered(claims, begin=begin, end=until)))
    return {"from": begin, "to": end, "columns": COLUMNS, "rows": rows, "after": last}


def _rows(claims: Iterable[MeteredClaim]) -> Iterator[dict[str, Any]]:
    book, hours, costs = PriceBook(), _Carry(PER_GPU_HOUR), _Carry(PER_GPU_HOUR * MILLIONTHS)
    for item in claims:
        # Core that was held, by model, day and price: what was resized within a day at one price is one row.
        held: dict[tuple[str, int, int | None], int] = defaultdict(int)
        for piece in item.pieces:
            for part, price in _divide(piece, book.tariff(piece.model, item.pool_id)):
                held[piece.model, part.begin_us // DAY_US, price] += part.core_us
        for (model, day, price), core_us in sorted(held.items(), key=lambda row: (row[0][:2], row[0][2] or 0)):
            begin = datetime.fromtimestamp(day * 86400, tz=UTC)
            yield _row(item, model, begin, price, hours=hours.add(core_us), cost=costs.add(core_us * (price or 0)))


class _Carry:
    """Fractions with one denominator as decimals, whose sum is the decimal of their sum."""

    def __init__(self, denominator: int) -> None:
        self._denominator, self._sum, self._given = denominator, 0, Decimal(0)

    def add(self, numerator: int) -> Decimal:
        """Return the next fraction, with what was cut off of those before."""
        self._sum += numerator
        whole, rest = divmod(self._sum, self._denominator)
        total = whole + (Decimal(rest) / self._denominator).quantize(PLACES)
        given, self._given = total - self._given, total
        return given


def _divide(piece: Piece, prices: Tariff) -> Iterator[tuple[Piece, int | None]]:
    """Yield the parts of a piece between midnights and changes of price, each with its price; None: without one."""
    days = range((piece.begin_us // DAY_US + 1) * DAY_US, piece.end_us, DAY_US)
    changes = [from_us for from_us, _ in prices if piece.begin_us < from_us < piece.end_us]
    marks = sorted({piece.begin_us, *days, *changes, piece.end_us})
    for begin, end in pairwise(marks):
        price = next((price for from_us, price in reversed(prices) if from_us <= begin), None)
        yield Piece(piece.model, piece.core, begin, end), price


def _row(
    item: MeteredClaim, model: str, begin: datetime, price: int | None, *, hours: Decimal, cost: Decimal
) -> dict[str, Any]:
    month = begin.replace(day=1)
    # A row of usage has a unit price; what was never priced costs 0.
    unit_price = f"{Decimal(price or 0) / MILLIONTHS:f}"
    money, quantity = f"{cost:f}", f"{hours:f}"
    facts = FIXED | {
        **dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), money),
        **dict.fromkeys(("BillingAccountId", "BillingAccountName", "SubAccountId", "SubAccountName"), item.tenant),
        **dict.fromkeys(("ContractedUnitPrice", "ListUnitPrice"), unit_price),
        **dict.fromkeys(("ConsumedQuantity", "PricingQuantity"), quantity),
        **dict.fromkeys(("RegionId", "RegionName", "x_Pool"), item.pool),
        "BillingCurrency": settings.CURRENCY,
        "BillingPeriodStart": _utc(month),
        "BillingPeriodEnd": _utc((month + timedelta(days=31)).replace(day=1)),
        "ChargePeriodStart": _utc(begin),
        "ChargePeriodEnd": _utc(begin + timedelta(days=1)),
        "ChargeDescription": f"Share of {model} reserved in pool {item.pool}",
        "ResourceId": str(item.uid),
        "ResourceName": item.name,
        "SkuId": model,
        # It stays the same when the price changes.
        "SkuPriceId": f"{model}/{item.pool}",
        "Tags": json.dumps({"pool": item.pool, "owner": item.owner}),
        "x_GpuModel": model,
        "x_Owner": item.owner,
    }
    return {name: facts.get(name) for name in COLUMNS}


def _utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
