"""Claims with measured use, for the tests of the rebalancer."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from agent import wire
from apps.nodes.models import Sample
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim, Proposal
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.rebalancing import proposals
from tests.cast import MIB_BYTES, Cast, Machine, ask, give_plenty, placed
from tests.measurements import keep, tell
from tests.scheduling.clock import Clock

SECONDS = 300


@pytest.fixture
def machine(clock: Clock, cast: Cast) -> Machine:
    give_plenty(cast.acme, cast.globex)
    change_pool(principal=SYSTEM, pool=cast.pool, rebalance_mode="apply")
    cast.pool.refresh_from_db()
    return Machine("gpu1", cast.pool, gpus=1)


def measured(
    claim: Claim, clock: Clock, *, seconds: int = SECONDS, memory_mib: int = 0, processes: int = 1, **facts: float
) -> None:
    """Advance the time; meanwhile every assignment of the claim has this use each second."""
    facts = {"core_percent": 0.0, "throttled_percent": 0.0, **facts}
    begin = clock.now
    clock.advance(seconds=seconds)
    keep(
        Sample(
            assignment_uid=assignment.uid,
            at=begin + timedelta(seconds=second + 1),
            core_limit_percent=claim.core_limit,
            memory_bytes=memory_mib * MIB_BYTES,
            processes=processes,
            **facts,
        )
        for assignment in claim.assignments.all()
        for second in range(seconds)
    )


def run(cast: Cast) -> list[Proposal]:
    cast.pool.refresh_from_db()
    return proposals.rebalance(principal=SYSTEM, pool=cast.pool).proposals


def idle_lender(cast: Cast, machine: Machine, clock: Clock, **asked: Any) -> Claim:
    """Create a claim of 80 % that lends 75 of it."""
    claim, _ = placed(cast, machine, core_request=80, **asked)
    measured(claim, clock)
    assert [(found.kind, found.state) for found in run(cast)] == [("lend", "applied")]
    claim.refresh_from_db()
    assert claim.lent_core == 75
    clock.advance(seconds=1)
    return claim


def borrower(cast: Cast, **asked: Any) -> Claim:
    """Create a best-effort claim of 60 % that fits on borrowed core only."""
    claim = ask(cast, tenant=cast.globex, core_request=60, best_effort=True, name="borrower", **asked)
    run_round(cast.pool)
    claim.refresh_from_db()
    return claim


def usage(machine: Machine, claim: Claim, core_percent: float, throttled_percent: float = 0.0) -> None:
    """Store one frame of the agent through the real gateway."""
    items = [
        wire.AssignmentUsage(
            uid=str(item.uid),
            core_percent=core_percent,
            core_limit_percent=100,
            throttled_percent=throttled_percent,
            memory_bytes=0,
            memory_limit_bytes=0,
            processes=1,
        )
        for item in claim.assignments.all()
    ]
    frame = wire.Usage(seq=1, at=timezone.now().timestamp(), gpus=[], assignments=items)
    tell(machine.node, frame)
