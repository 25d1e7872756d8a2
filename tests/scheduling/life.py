"""Random events of a pool, beside a scheduler's snapshot of it."""

import random
from collections.abc import Callable
from contextlib import suppress

from apps.nodes.models import Node
from apps.nodes.services.nodes import change_node, take_hello
from apps.quotas.models import Pool
from apps.quotas.principals import SYSTEM
from apps.quotas.services import tenants
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.lifecycle import WrongState, release_claim
from apps.scheduling.services.claims.resize import NoRoom, resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles.notices import Session
from apps.scheduling.services.cycles.pool_cache import PoolCache
from apps.scheduling.services.cycles.rounds import rounds
from apps.scheduling.services.reclaiming.forgetting import NodeOnline, forget_node
from tests.cast import Cast, Machine, ask, hello, lose


class Kept:
    """A pool's snapshot, updated as the scheduler updates it."""

    def __init__(self, pool: Pool) -> None:
        self.session = Session()
        self.cache = PoolCache(pool)

    def hear(self) -> None:
        self.cache.apply(self.session.receive())

    def rounds(self) -> None:
        for _ in rounds(self.cache, fence=self.session.fence):
            pass


class Life:
    """A random history of a pool."""

    def __init__(self, cast: Cast, kept: Kept, seed: int) -> None:
        self.cast, self.kept, self.dice = cast, kept, random.Random(seed)  # noqa: S311 - what happens must be repeatable
        self.other = tenants.create_pool(principal=SYSTEM, name="other")
        self.machines = [Machine(f"gpu{number}", cast.pool, gpus=2) for number in range(3)]
        self.ends: list[Callable[[], object]] = [
            self.ask, self.ask, self.round, self.round, self.obey, self.obey, self.resize, self.release, self.cordon,
            self.lose, self.greet, self.move, self.forget,
        ]  # fmt: skip

    def step(self) -> None:
        self.dice.choice(self.ends)()

    def machine(self) -> Machine:
        return self.dice.choice(self.machines)

    def claim(self) -> Claim | None:
        claims = list(Claim.objects.exclude(state="released"))
        return self.dice.choice(claims) if claims else None

    def ask(self) -> None:
        ask(self.cast, core_request=self.dice.choice((10, 30, 60, 100)), gpu_count=self.dice.choice((1, 1, 2)))

    def round(self) -> None:
        self.kept.rounds()

    def obey(self) -> None:
        machine = self.machine()
        if Node.objects.get(pk=machine.node.pk).online:
            machine.obey()

    def resize(self) -> None:
        if claim := self.claim():
            with suppress(NoRoom, WrongState):
                resize_claim(
                    principal=SYSTEM, claim=claim, changes=ClaimChanges(core_request=self.dice.choice((5, 20, 50, 90)))
                )

    def release(self) -> None:
        if claim := self.claim():
            release_claim(principal=SYSTEM, claim=claim)

    def cordon(self) -> None:
        change_node(principal=SYSTEM, node=self.machine().node, cordoned=self.dice.random() < 0.5)

    def lose(self) -> None:
        lose(self.machine())

    def greet(self) -> None:
        machine = self.machine()
        node = Node.objects.get(pk=machine.node.pk)
        take_hello(node=node, hello=hello(machine.name, gpus=self.dice.choice((1, 2, 3))))

    def move(self) -> None:
        node = Node.objects.get(pk=self.machine().node.pk)
        if not node.gpus.filter(core_used__gt=0).exists():
            change_node(principal=SYSTEM, node=node, pool=self.dice.choice((self.cast.pool, self.other)))

    def forget(self) -> None:
        with suppress(NodeOnline):
            forget_node(principal=SYSTEM, node=Node.objects.get(pk=self.machine().node.pk))
