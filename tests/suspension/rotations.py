"""Claims that rotate, for tests: time that a test moves, and the parts of the platform that act on them."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from django.utils import timezone

from apps.nodes.models import Node
from apps.quotas.models import Pool
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.cycles.rounds import run_round
from apps.suspension.rotation import rotating
from apps.suspension.rotation.parts import in_since, served_seconds
from tests.cast import GIB, Cast, Machine, ask, give_plenty

SLICE = 60
SECONDS_OF_A_SWAP = 4
# A slice is longer than asked for, so that a swap of 20 GiB by its estimate takes a tenth.
LONG = timedelta(seconds=200)


class Clock:
    """The time of `timezone.now`, which a test moves."""

    def __init__(self) -> None:
        self.ahead = timedelta()
        self.real = timezone.now

    def now(self) -> datetime:
        return self.real() + self.ahead

    def forward(self, by: timedelta) -> None:
        """Let time pass; agents are heard meanwhile."""
        self.ahead += by
        Node.objects.update(last_seen_at=self.now())


@pytest.fixture
def clock() -> Iterator[Clock]:
    made = Clock()
    with mock.patch("django.utils.timezone.now", made.now):
        yield made


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme)
    Pool.objects.update(oversubscribe=3, slice_seconds=SLICE)
    cast.pool.refresh_from_db()
    return Machine("gpu1", cast.pool, gpus=1, host_memory_mib=100 * GIB)


def running(cast: Cast, machine: Machine, clock: Clock, count: int = 3, **facts: Any) -> list[Claim]:
    """Create claims of which one fits, and let it run for longer than its slice."""
    facts = {"core_request": 100, "memory_mib": 20 * GIB, **facts}
    claims = [ask(cast, name=f"c{number}", **facts) for number in range(count)]
    run_round(cast.pool)
    work(cast, machine, clock)
    clock.forward(LONG)
    return claims


def work(cast: Cast, machine: Machine, clock: Clock, *, runs: int | None = None) -> None:
    """Let every part of the platform do its part until nothing moves any more, four seconds at most.

    With `runs`, so many times: for what time alone brings about.
    """
    before = positions()
    for left in reversed(range(runs or SECONDS_OF_A_SWAP)):
        rotating.drive()
        run_round(cast.pool)
        machine.obey()
        clock.forward(timedelta(seconds=1))
        if runs is None and before == (before := positions()):
            clock.forward(timedelta(seconds=left))
            break


def positions() -> list[Any]:
    """Return what a swap changes at each of its steps."""
    claims = Claim.objects.order_by("pk").values_list("pk", "state", "nominated_gpus", "suspended_by")
    rows = Assignment.objects.order_by("pk")
    return [*claims, *rows.values_list("pk", "state", "gpu", "return_gpu", "generation", "observed_generation")]


def states(claims: list[Claim]) -> list[str]:
    found = dict(Claim.objects.values_list("pk", "state"))
    return [found[claim.pk] for claim in claims]


def served(claim: Claim) -> float:
    """Return the GPU-seconds that the claim was served up to now."""
    row = Claim.objects.select_related("rotation").get(pk=claim.pk)
    rows = list(row.assignments.live().select_related("gpu"))
    found = served_seconds(row, 1.0, now=timezone.now(), since=in_since(row, rows))
    assert found is not None
    return found
