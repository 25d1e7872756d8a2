"""Verbs of what-ifs: order one, and run it.

A pool has one what-if, the last; a new order replaces it unless it still runs. An order whose worker died counts as
ended after `LONGEST`.
"""

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import Any

from celery import current_app
from django.db import transaction
from django.utils import timezone
from kombu.exceptions import OperationalError

from apps.quotas.models import Pool, Tenant
from apps.quotas.principals import Principal
from apps.whatif.history import read_history, read_site
from apps.whatif.models import UNFINISHED, WhatIf, WhatIfState
from apps.whatif.replaying import Replay
from apps.whatif.values import KINDS, SHARINGS, Figures, Kind
from gpucloud.errors import Conflict, Invalid

logger = logging.getLogger(__name__)

LEAST_DAYS, MOST_DAYS, DAYS = 1, 90, 30
# Tasks end after 300 s; one that waited for a worker for as long is lost.
LONGEST = timedelta(minutes=10)
TASK = "apps.whatif.tasks.run_what_if"


class WhatIfRuns(Conflict, code="what-if-runs", title="A what-if of the pool runs"):
    """The last order of the pool has not ended."""


class NoGpus(Invalid, code="no-gpus", title="The pool has no GPUs"):
    """There is nothing on which claims could be replayed."""


@transaction.atomic
def order_what_if(*, principal: Principal, pool: Pool, days: int = DAYS, kinds: Sequence[Kind] = SHARINGS) -> WhatIf:
    """Order a replay of the pool's last days, for operators. Raises WhatIfRuns, NoGpus."""
    principal.require_operator()
    now = timezone.now()
    if not pool.nodes.filter(gpus__present=True).exists():
        raise NoGpus(f"Pool {pool.name} has no GPUs: add a node first.", pool=pool.name)
    # The pool's row is locked, so that of two orders at once one finds the other's.
    Pool.objects.select_for_update(no_key=True).get(pk=pool.pk)
    last = WhatIf.objects.filter(pool=pool).first()
    if last is not None and last.state in UNFINISHED and last.ordered_at > now - LONGEST:
        raise WhatIfRuns(f"A what-if of pool {pool.name} runs since {last.ordered_at:%H:%M} UTC.", pool=pool.name)
    values = {
        "run": uuid.uuid4(), "days": days, "kinds": [kind for kind in KINDS if kind in kinds], "results": [],
        "state": WhatIfState.PENDING, "progress_percent": 0, "claims": 0, "left_out": 0, "words": "",
        "begin": now - timedelta(days=days), "end": now, "created_by": principal.name, "ordered_at": now,
        "finished_at": None,
    }  # fmt: skip
    row = WhatIf(pool=pool, **values) if last is None else last
    row = row.change(**values) if last is not None else row
    if last is None:
        row.save()
    transaction.on_commit(partial(_hand_over, row.pk, str(row.run)))
    return row


def _hand_over(key: int, number: str) -> None:
    """Give the order to a worker; without a broker it fails at once, in words."""
    try:
        current_app.send_task(TASK, [key, number], retry=False)
    except OperationalError:
        words = "No worker could be reached: try again."
        WhatIf.objects.filter(pk=key, run=number).update(state=WhatIfState.FAILED, words=words)


def run(key: int, number: str) -> bool:
    """Run the order with this number; return whether it was there. A second run at the same time does nothing."""
    mine = WhatIf.objects.filter(pk=key, run=number)
    if not mine.filter(state=WhatIfState.PENDING).update(state=WhatIfState.RUNNING):
        return False
    row = mine.select_related("pool").get()
    try:
        _replay(row)
    except Exception:
        logger.exception("what-if of pool %s", row.pool.name)
        mine.update(
            state=WhatIfState.FAILED, finished_at=timezone.now(), words="The replay failed; the worker's log says why."
        )
        raise
    return True


def _replay(row: WhatIf) -> None:
    assert row.begin is not None
    assert row.end is not None
    mine = WhatIf.objects.filter(pk=row.pk, run=row.run)
    site = read_site(row.pool, begin=row.begin, end=row.end)
    history = read_history(row.pool, begin=row.begin, end=row.end)
    slugs = {str(pk): slug for pk, slug in Tenant.objects.values_list("pk", "slug")}
    results = []
    for number, kind in enumerate(kind for kind in KINDS if kind in row.kinds):

        def note(done: int, total: int, number: int = number) -> None:
            part = (number + done / max(total, 1)) / len(row.kinds)
            mine.update(progress_percent=int(100 * part))

        results.append(_document(Replay(site, history.claims, kind).run(note), slugs))
    mine.update(
        state=WhatIfState.DONE,
        progress_percent=100,
        claims=len(history.claims) + history.left_out,
        left_out=history.left_out,
        results=results,
        finished_at=timezone.now(),
    )


def _document(figures: Figures, slugs: Mapping[str, str]) -> dict[str, Any]:
    """Return the figures as they are stored, with the slugs of tenants."""
    waits = [{"tenant": slugs.get(key, key), **one._asdict()} for key, one in figures.waits.items()]
    return asdict(figures) | {"waits": sorted(waits, key=lambda one: str(one["tenant"]))}
