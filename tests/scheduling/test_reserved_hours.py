"""Reserved hours after any history: a report equals the claims' amounts, summed moment by moment."""

import contextlib
import random
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from apps.nodes.services.nodes import take_hello
from apps.quotas.models import ResourceQuota
from apps.quotas.principals import SYSTEM
from apps.quotas.services.quotas import create_quota, delete_quota
from apps.scheduling.core.metering import PER_GPU_HOUR
from apps.scheduling.models import Claim
from apps.scheduling.services.charging.metering import gpu_hours, metered
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.reclaiming.forgetting import forget_node
from gpucloud.errors import GpucloudError
from tests.cast import Cast, Machine, ask, assert_books_agree, give_plenty, hello, lose
from tests.matrix import seeds
from tests.scheduling.clock import START, Clock
from tests.scheduling.test_usage_reports import report

STEPS = 40


class History:
    """Random acts on a few machines, and a slow count of what is allocated meanwhile."""

    def __init__(self, cast: Cast, clock: Clock, seed: int) -> None:
        self.cast, self.clock, self.random = cast, clock, random.Random(seed)  # noqa: S311
        give_plenty(cast.acme, cast.globex)
        self.machines = [Machine("gpu1", cast.pool), Machine("gpu2", cast.pool, model="NVIDIA H200")]
        self.counted: dict[tuple[str, str], int] = defaultdict(int)

    def act(self) -> None:
        """Perform one act, or get a refusal; then let time pass, and count charges and placements."""
        acts: list[Callable[[], object]] = [
            self.ask, self.ask, self.resize, self.resize, self.release, self.give, self.take, self.forget,
            lambda: run_round(self.cast.pool), lambda: run_round(self.cast.pool),
            lambda: self.random.choice(self.machines).obey(), lambda: self.random.choice(self.machines).obey(),
        ]  # fmt: skip
        with contextlib.suppress(GpucloudError):
            self.random.choice(acts)()
        lasts = timedelta(microseconds=self.random.randrange(1, 10**10))
        microseconds = lasts // timedelta(microseconds=1)
        for claim in Claim.objects.select_related("tenant"):
            models = list(claim.assignments.exclude(state="released").values_list("gpu__model", flat=True))
            for model in set(models):
                share = claim.charged_core_percent * models.count(model) // len(models)
                self.counted[claim.tenant.slug, model] += share * microseconds
        self.clock.advance(seconds=lasts.total_seconds())

    def one(self) -> Claim:
        live = list(Claim.objects.live().order_by("pk"))
        return self.random.choice(live) if live else ask(self.cast, core_request=1)

    def ask(self) -> None:
        tenant = self.random.choice([self.cast.acme, self.cast.globex])
        facts: dict[str, Any] = {
            "core_request": self.random.randrange(1, 101),
            "gpu_count": self.random.randrange(1, 4),
        }
        ask(self.cast, tenant=tenant, memory_mib=100, **facts)

    def resize(self) -> None:
        resize_claim(
            principal=SYSTEM, claim=self.one(), changes=ClaimChanges(core_request=self.random.randrange(1, 101))
        )

    def release(self) -> None:
        release_claim(principal=SYSTEM, claim=self.one())

    def give(self) -> None:
        """Create a pool's own quota beside the overall one: every claim is then charged twice."""
        create_quota(principal=SYSTEM, tenant=self.cast.acme, pool=self.cast.pool, resource="core_percent", hard=None)

    def take(self) -> None:
        for quota in ResourceQuota.objects.exclude(pool=None):
            delete_quota(principal=SYSTEM, quota=quota)

    def forget(self) -> None:
        if self.random.random() < 0.3:
            machine = self.random.choice(self.machines)
            lose(machine)
            forget_node(principal=SYSTEM, node=machine.node)
            machine.node.refresh_from_db()
            take_hello(node=machine.node, hello=hello(machine.name, model=machine.gpu().model))


def check(cast: Cast, clock: Clock, seed: int) -> None:
    history = History(cast, clock, seed)
    for _ in range(STEPS):
        history.act()
    rows = {(row["tenant"], row["gpu_model"]): row["gpu_hours_reserved"] for row in report(cast.olga)["rows"]}
    counted = {key: gpu_hours(amount) for key, amount in history.counted.items() if amount}
    assert rows == counted
    # Exact to the percent-microsecond, not only to the millionth of an hour.
    pieces = [item.pieces for item in metered(Claim.objects.all(), begin=START, end=clock.now)]
    assert sum(piece.core_us for item in pieces for piece in item) == sum(history.counted.values()) > PER_GPU_HOUR
    assert_books_agree()


@pytest.mark.parametrize("seed", seeds(4))
def test_reserved_hours_are_what_was_held(clock: Clock, cast: Cast, seed: int) -> None:
    check(cast, clock, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4, 60))
def test_reserved_hours_are_what_was_held_in_many_histories(clock: Clock, cast: Cast, seed: int) -> None:
    check(cast, clock, seed)
