"""Hints that something changed: to the scheduler, to agents, and to requests and pages that wait or watch.

Everything here may be lost; the truth is in the database, and each hint has its repair.
"""

import asyncio
import logging
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from celery import current_app
from django.db import connection, transaction
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from apps.nodes.models.node import hint_group
from apps.quotas.models import Pool
from gpucloud import counters, hints
from gpucloud.fastpath import serving

if TYPE_CHECKING:
    from apps.scheduling.models import Claim

logger = logging.getLogger(__name__)

ROUNDS_CHANNEL = "gpucloud_rounds"
# By its name: the task is of an app above (`apps.reservations`), and older processes know it by this name.
DRIVE_RESERVATIONS = "apps.scheduling.tasks.drive_reservations"

# Messages by group of the hint bus.
Messages = dict[str, hints.Message]
WATCHED_LIST = "watch.claims."
# A page that watches a list reads all of it again: once in this time is enough, however many claims change.
GATHER_SECONDS = 0.1


def claim_group(uid: uuid.UUID | str) -> str:
    """Return the group of requests and pages that wait for a claim or watch it."""
    return f"claim.{uid}"


def node_group(uid: uuid.UUID | str) -> str:
    """Return the group of pages that watch a node."""
    return f"watch.node.{uid}"


def claims_group(tenant_id: int | None) -> str:
    """Return the group of pages that watch all of a tenant's claims; None: every tenant's."""
    return f"{WATCHED_LIST}{tenant_id or 'all'}"


def wake_scheduler(pool: Pool) -> None:
    """Have everything that waits in the pool asked again after the commit.

    This is for changes that no row shows: the database itself sends notices of changed GPUs, nodes, claims, quotas and
    budgets.
    """
    _notify(f"pool {pool.pk}")


def wake_for_cohort(cohort: str) -> None:
    """Have the claims that wait for quota of the cohort asked again after the commit."""
    _notify(f"cohort {cohort}")


def _notify(payload: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [ROUNDS_CHANNEL, payload])


def push_on_commit(node_ids: Iterable[int]) -> None:
    """Send these nodes' agents their desired state after the commit.

    Repair: `repair_pushes`, and the agent's reconnect.
    """
    if ordered := sorted(set(node_ids)):
        transaction.on_commit(lambda: push(ordered, why="change"))


def push(node_ids: Sequence[int], *, why: str) -> None:
    """Notify the servers to which these nodes' agents are connected that there is something to send.

    They read the state themselves, when they send it: hints may come twice, late, or in another order.
    """
    counters.PUSHES.add(why, amount=len(node_ids))
    _send({hint_group(node_id): {"type": "node.changed"} for node_id in node_ids})


def drive_reservations_on_commit() -> None:
    """Run the reservations' clock after the commit. Repair: it runs by itself every few seconds."""
    transaction.on_commit(lambda: _queue(DRIVE_RESERVATIONS))


def _queue(task: str, *arguments: object) -> None:
    try:
        current_app.send_task(task, list(arguments), retry=False)
    except (OperationalError, OSError) as error:
        logger.warning("%s%s not queued: %s", task, arguments, error)


def node_forgotten_on_commit(node_id: int) -> None:
    """Close the connection of a node's agent after the commit.

    Repair: its key is void, so its next hello is refused.
    """
    transaction.on_commit(lambda: _send({hint_group(node_id): {"type": "node.forgotten"}}))


def claim_changed_on_commit(claim: "Claim") -> None:
    """Notify after the commit that this claim changed. Repair: waiting requests and pages read again by themselves."""
    claims_changed_on_commit([claim])


def claim_made_on_commit(claim: "Claim") -> None:
    """Notify pages that watch lists. Nobody can wait for the claim itself before its uid is known."""
    groups = claims_group(claim.tenant_id), claims_group(None)
    messages: Messages = {group: {"type": "claim.changed", "uid": str(claim.uid)} for group in groups}
    transaction.on_commit(lambda: _send(messages))


def claims_changed_on_commit(claims: Iterable["Claim"]) -> None:
    """Notify of many changed claims; a page that watches a list is notified once."""
    first: dict[str, str] = {}
    for claim in claims:
        for group in (claim_group(claim.uid), claims_group(claim.tenant_id), claims_group(None)):
            first.setdefault(group, str(claim.uid))
    messages: Messages = {group: {"type": "claim.changed", "uid": uid} for group, uid in first.items()}
    transaction.on_commit(lambda: _send(messages))


def hint_on_commit(group: str, message: hints.Message) -> None:
    """Publish a message to a group of the hint bus after the commit."""
    transaction.on_commit(lambda: _send({group: message}))


def _send(messages: Messages) -> None:
    """Send messages: from a request's thread without waiting, from a command or a task until sent. Never raises."""
    if loop := serving.loop():
        loop.call_soon_threadsafe(_leave, messages)
    else:
        try:
            hints.publish(messages.items())
        except (RedisError, OSError) as error:
            _log_lost(messages, error)


# Messages for lists that a server's loop has gathered, and messages that are being sent.
_gathered: "WeakKeyDictionary[asyncio.AbstractEventLoop, Messages]" = WeakKeyDictionary()
_sending: set[asyncio.Task[None]] = set()


def _leave(messages: Messages) -> None:
    """Send messages about single objects at once, and gather the rest; runs in the loop."""
    here = asyncio.get_running_loop()
    gathered = _gathered.setdefault(here, {})
    if not gathered:
        here.call_later(GATHER_SECONDS, _flush, gathered)
    gathered |= {group: message for group, message in messages.items() if group.startswith(WATCHED_LIST)}
    if at_once := {group: message for group, message in messages.items() if group not in gathered}:
        _begin(at_once)


def _flush(gathered: Messages) -> None:
    if gathered:
        _begin(dict(gathered))
    gathered.clear()


def _begin(messages: Messages) -> None:
    # The loop itself has only a weak reference to a task.
    task = asyncio.ensure_future(_publish(messages))
    _sending.add(task)
    task.add_done_callback(_sending.discard)


async def _publish(messages: Messages) -> None:
    try:
        await hints.bus().publish(messages.items())
    except (RedisError, OSError, TimeoutError) as error:
        _log_lost(messages, error)


def _log_lost(messages: Messages, error: Exception) -> None:
    logger.warning("hint to %s not sent: %s", next(iter(messages)), error)
