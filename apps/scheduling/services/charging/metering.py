"""Metering of claims from the ledger: the source of every number of a report or a budget.

The ledger says how much a claim was charged from which moment on, its assignments say on which GPUs it was. Both are
stored for ever, so a period that is over has the same numbers whenever it is read.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import groupby
from operator import itemgetter
from uuid import UUID

from django.db.models import Q, QuerySet

from apps.quotas.models import LedgerEntry, Price, Resource
from apps.scheduling.core.metering import MILLIONTHS, PER_GPU_HOUR, Entry, Piece, Span, Tariff, meter, tariff
from apps.scheduling.models import Assignment, AssignmentState, Claim
from apps.scheduling.services.fleet.reserved import microseconds

# The ledger is read for this many claims at once.
AT_ONCE = 2000
HOURS = Decimal("0.000001")


@dataclass(frozen=True, slots=True)
class MeteredClaim:
    """The pieces that one claim held within the period."""

    uid: UUID
    name: str
    tenant: str
    pool_id: int
    pool: str
    owner: str
    pieces: list[Piece]


def gpu_hours(core_us: int) -> str:
    """Return percent-microseconds as GPU-hours, to the millionth."""
    return f"{(Decimal(core_us) / PER_GPU_HOUR).quantize(HOURS):f}"


def metered(claims: QuerySet[Claim], *, begin: datetime, end: datetime) -> Iterator[MeteredClaim]:
    """Yield the pieces that these claims held between two moments. Claims that held nothing are left out."""
    inside, last = between(claims, begin=begin, end=end).order_by("pk"), 0
    while keys := list(inside.filter(pk__gt=last).values_list("pk", flat=True)[:AT_ONCE]):
        # A subquery, not a list of keys: parameters passed one by one cost more than the claims themselves.
        yield from _metered(inside.filter(pk__gt=last, pk__lte=keys[-1]), begin=begin, end=end)
        last = keys[-1]


def between(claims: QuerySet[Claim], *, begin: datetime, end: datetime) -> QuerySet[Claim]:
    """Return the claims that may have held something between two moments."""
    return claims.filter(Q(released_at=None) | Q(released_at__gt=begin), created_at__lt=end)


def _metered(claims: QuerySet[Claim], *, begin: datetime, end: datetime) -> Iterator[MeteredClaim]:
    rows = claims.values_list("uid", "name", "tenant__slug", "pool_id", "pool__name", "created_by")
    facts = {row[0]: row for row in rows}
    spans = _spans(claims)
    window = {"begin_us": microseconds(begin), "end_us": microseconds(end)}
    for uid, entries in _entries(claims, end):
        if uid in facts and (pieces := list(meter(entries, spans[uid], **window))):
            yield MeteredClaim(*facts[uid], pieces)


def _entries(claims: QuerySet[Claim], end: datetime) -> Iterator[tuple[UUID, Iterator[Entry]]]:
    rows = LedgerEntry.objects.filter(
        resource=Resource.CORE_PERCENT, claim_uid__in=claims.order_by().values("uid"), at__lt=end
    )
    ordered = rows.order_by("claim_uid", "pk").values_list("claim_uid", "at", "pool_id", "amount")
    for uid, group in groupby(ordered.iterator(chunk_size=5000), key=itemgetter(0)):
        yield uid, (Entry(microseconds(at), pool, amount) for _, at, pool, amount in group)


def _spans(claims: QuerySet[Claim]) -> dict[UUID, list[Span]]:
    """Return spans by claim. Nothing is written to an assignment after its release, so its last change is that."""
    spans: dict[UUID, list[Span]] = defaultdict(list)
    rows = Assignment.objects.filter(claim__in=claims.order_by().values("pk"))
    for uid, model, begun, state, changed in rows.values_list(
        "claim__uid", "gpu__model", "created_at", "state", "updated_at"
    ):
        ended = microseconds(changed) if state == AssignmentState.RELEASED else None
        spans[uid].append(Span(model, microseconds(begun), ended))
    return spans


class PriceBook:
    """The current prices, by model and pool: one query."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int | None], list[tuple[int, int]]] = defaultdict(list)
        for price in Price.objects.order_by("valid_from"):
            line = (_midnight(price.valid_from), int(price.per_gpu_hour * MILLIONTHS))
            self._rows[price.gpu_model, price.pool_id].append(line)

    def tariff(self, model: str, pool_id: int) -> Tariff:
        """Return the price of a GPU-hour of this model in this pool, by time."""
        return tariff(general=self._rows.get((model, None), []), of_pool=self._rows.get((model, pool_id), []))


def _midnight(day: date) -> int:
    return microseconds(datetime(day.year, day.month, day.day, tzinfo=UTC))
