"""Hash chain of the audit log: `verify` detects removed and altered events.

Every event gets a position (1, 2, 3 …, without gaps) and a digest of its content and of the previous digest. A sealer
does that a moment after the commit, not the insert: chaining at the insert needs a lock that each transaction would
hold until it commits, so all writers would wait for one another. Positions follow the order of sealing; an event that
was committed late comes later, whatever its key.

It detects a sealed event that was changed, removed, inserted or moved. By itself it cannot detect an event that was
removed before it was sealed, a tail that was cut off, or a chain that was rewritten with the database's full rights.
For these the head (position and digest) is logged at each sealing, to be stored beyond the reach of the database's
owner; `verify(heads=…)` checks that the chain still contains them.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper
from django.utils import timezone

from apps.quotas.models import AuditEvent

logger = logging.getLogger(__name__)

LOCK = int.from_bytes(b"gpcaudit", signed=True)
BATCH = 1000
START = "0" * 64
# The sealer runs every two seconds; a longer delay means that it does not run.
BEHIND = timedelta(minutes=5)
# A chain that was cut in two has one fault; a replaced table would fill the terminal.
MOST_FAULTS = 100


@dataclass(frozen=True, slots=True)
class Head:
    """A position in the chain and its digest; written `PLACE:DIGEST`."""

    position: int
    digest: str

    def __str__(self) -> str:
        return f"{self.position}:{self.digest}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of `verify`; without faults the chain is intact."""

    head: Head
    unsealed: int
    faults: Sequence[str]


def digest_of(event: AuditEvent, *, position: int, previous: str) -> str:
    """Return the SHA-256 of the event's content, its position and the previous digest, in a permanent encoding."""
    content = [
        previous,
        position,
        event.pk,
        event.at.astimezone(UTC).isoformat(timespec="microseconds"),
        event.actor,
        event.action,
        event.object_type,
        event.object_id,
        event.tenant_id,
        event.before,
        event.after,
        event.source_ip,
    ]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def head() -> Head:
    """Return the present end of the chain."""
    last = AuditEvent.objects.exclude(position=None).order_by("-position").values_list("position", "digest").first()
    return Head(*last) if last else Head(0, START)  # type: ignore[arg-type]


def seal() -> int:
    """Chain all committed, unsealed events; return their number. A second concurrent sealer does nothing."""
    total = 0
    while sealed := _seal_batch():
        total += sealed
    if total:
        logger.info("audit log sealed to %s", head())
    return total


@transaction.atomic
def _seal_batch() -> int:
    with connection.cursor() as cursor:
        if not _try_lock(cursor):
            return 0
        events = list(AuditEvent.objects.filter(position=None).order_by("pk")[:BATCH])
        if not events:
            return 0
        at = head()
        heads = []
        for event in events:
            at = Head(at.position + 1, digest_of(event, position=at.position + 1, previous=at.digest))
            heads.append(at)
        cursor.execute(
            "UPDATE quotas_auditevent AS event SET position = seal.position, digest = seal.digest "
            "FROM unnest(%s::bigint[], %s::bigint[], %s::text[]) AS seal (id, position, digest) "
            "WHERE event.id = seal.id",
            [[event.pk for event in events], [at.position for at in heads], [at.digest for at in heads]],
        )
    return len(events)


def _try_lock(cursor: CursorWrapper) -> bool:
    """Try to lock the chain until the transaction's end; a crashed sealer leaves no lock behind."""
    cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [LOCK])
    return bool(cursor.fetchone()[0])


def verify(*, heads: Iterable[Head] = ()) -> Verdict:
    """Walk the whole chain and check that it contains `heads`, which were stored elsewhere."""
    wanted: dict[int, set[str]] = {}
    for kept in heads:
        wanted.setdefault(kept.position, set()).add(kept.digest)
    faults: list[str] = []
    at = Head(0, START)
    for at, fault in _walk():
        if fault:
            faults.append(fault)
        others = wanted.pop(at.position, set()) - {at.digest}
        faults += [f"place {at.position} has the digest {at.digest}, and had {had}: written anew" for had in others]
        if len(faults) >= MOST_FAULTS:
            break
    else:
        faults += [
            f"the chain ends at {at.position}, but reached {place} once: its end is gone" for place in sorted(wanted)
        ]
    unsealed = AuditEvent.objects.filter(position=None)
    faults += _behind(unsealed.order_by("at").values_list("at", flat=True).first())
    for fault in faults:
        logger.error("audit log: %s", fault)
    logger.info("audit log verified to %s: %s", at, "broken" if faults else "whole")
    return Verdict(head=at, unsealed=unsealed.count(), faults=faults)


def _walk() -> Iterator[tuple[Head, str]]:
    """Yield the start, then each sealed event's stored head with its fault; a fault does not end the walk."""
    at = Head(0, START)
    yield at, ""
    events = AuditEvent.objects.exclude(position=None).order_by("position")
    for event in events.iterator(chunk_size=BATCH):
        position, digest = event.position or 0, event.digest or ""
        fault = ""
        if position != at.position + 1:
            fault = f"event(s) removed: places {at.position + 1} to {position - 1} are missing before event {event.pk}"
        elif digest != digest_of(event, position=position, previous=at.digest):
            fault = f"event {event.pk} at place {position} ({event.actor} {event.action} {event.object_id}) was altered"
        at = Head(position, digest)
        yield at, fault


def _behind(oldest: datetime | None) -> list[str]:
    if oldest is None or timezone.now() - oldest < BEHIND:
        return []
    return [f"events since {oldest.isoformat(timespec='seconds')} are not sealed: is the Celery beat running?"]
