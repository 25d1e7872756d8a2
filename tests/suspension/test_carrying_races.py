"""Carried programs in any order of orders, reports, refusals and restarts of agents: none is lost, none runs twice."""

import contextlib
import random
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from django.db.models import F

from agent import wire
from apps.accounting.services.ledger_check import differences
from apps.nodes.models import Gpu, Node
from apps.nodes.services import capacity
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Assignment, AssignmentState, Claim
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.claims.lifecycle import WrongState
from apps.suspension.between import carrying, ordering, reports
from apps.suspension.between.expiring import give_up
from apps.suspension.between.ordering import move_claim_to_node
from apps.suspension.moving import NoRoomToMove
from tests.cast import GIB, Cast, Machine, assert_books_agree, give_plenty, placed
from tests.matrix import scales, seeds
from tests.racing import outcomes, race
from tests.suspension.test_races import running

STEPS, RUNS = 200, 12
# Of claims of 1 GiB and 5 %: fewer than one GPU has room for.
FEW, MANY, ROOM, GPUS = 20, 40, 10, 8
# Long enough for every racer to read the same value, short enough to wait for.
A_MOMENT_SECONDS = 0.05
WORDS = "An injected failure."


class Agent:
    """An agent that obeys late, fails at times, and is started anew at times.

    It has the claim's programs, running or stopped (`runs`), or images of them, or neither.
    """

    def __init__(self, machine: Machine, chance: random.Random, *, has: bool) -> None:
        self.machine, self.has, self.runs, self.has_images = machine, has, has, False
        self._chance = chance
        self._order: list[wire.Assignment] = []
        # The secret of the open ticket; and the generations at which programs have been sent, or an order was refused.
        self._secret: str | None = None
        self._sent: set[int] = set()
        self._refused: set[int] = set()
        self.peer = self

    def listen(self) -> None:
        self._order = list(desired_state(self.machine.node).assignments)

    def begin_anew(self) -> None:
        self._secret = None

    def act(self) -> None:
        """Do what was ordered, or fail to, and report it."""
        self.machine.say(*map(self._obey, self._order))

    def _obey(self, one: wire.Assignment) -> wire.Observation:
        if not one.present:
            self.has = self.runs = self.has_images = False
            self._secret = None
            return self._report(one, "released")
        if one.generation in self._refused:
            return self._refuse(one)
        if not one.suspended:
            return self._run(one)
        if one.carry is None or self._chance.random() < 0.1:
            return self._refuse(one)
        return self._offer(one) if one.carry.ticket is None else self._send(one, one.carry.ticket)

    def _offer(self, one: wire.Assignment) -> wire.Observation:
        # Once it has reported that it is ready, a new agent offers nothing more.
        if one.generation not in self._sent:
            self._sent.add(one.generation)
            self._secret = f"{self._chance.getrandbits(128):032x}"
        ticket = (
            wire.Ticket(host="h", port=1, fingerprint="0" * 64, secret=self._secret or "") if self._secret else None
        )
        return self._report(one, "suspended", **({} if ticket is None else {"ticket": ticket}))

    def _send(self, one: wire.Assignment, ticket: wire.Ticket) -> wire.Observation:
        if one.generation not in self._sent:
            if not self.has or self.peer._secret != ticket.secret:
                return self._refuse(one)
            self.peer.has_images, self.peer._secret = True, None
            self._sent.add(one.generation)
            self.runs = False
        return self._report(one, "suspended")

    def _run(self, one: wire.Assignment) -> wire.Observation:
        if not self.has and (not self.has_images or self._chance.random() < 0.2):
            return self._refuse(one)
        self.has = self.runs = True
        self.has_images = False
        return self._report(one, "in_force")

    def _refuse(self, one: wire.Assignment) -> wire.Observation:
        self._refused.add(one.generation)
        state: wire.AssignmentState = "in_force" if self.runs else "suspended"
        return self._report(one, state, suspend_refused=WORDS)

    @staticmethod
    def _report(one: wire.Assignment, state: wire.AssignmentState, **more: Any) -> wire.Observation:
        return wire.Observation(uid=one.uid, generation=one.generation, state=state, **more)


def scene(cast: Cast, seed: int) -> tuple[list[Agent], Claim, random.Random]:
    give_plenty(cast.acme)
    chance = random.Random(seed)  # noqa: S311
    machines = [
        Machine(name, cast.pool, host_memory_mib=20 * GIB, carry=True).stay_online() for name in ("gpu1", "gpu2")
    ]
    claim, _ = placed(cast, machines[0], movable=True)
    agents = [Agent(machine, chance, has=number == 0) for number, machine in enumerate(machines)]
    agents[0].peer, agents[1].peer = agents[1], agents[0]
    for agent in agents:
        agent.listen()
    return agents, claim, chance


def count(agents: Sequence[Agent]) -> tuple[int, bool]:
    """Return at how many places the programs run, and whether they are anywhere."""
    return sum(one.runs for one in agents), any(one.has or one.has_images for one in agents)


def run_once(agents: list[Agent], claim: Claim, chance: random.Random) -> Counter[tuple[int, bool]]:
    """Carry the claim to and fro in a random order of events; return what was counted after each."""
    found: Counter[tuple[int, bool]] = Counter()
    for _ in range(STEPS):
        agent = chance.choice(agents)
        act = chance.choice([agent.listen, agent.act] * 4 + [give_up, agent.begin_anew])
        act()
        claim.refresh_from_db()
        if claim.state == "active" and chance.random() < 0.5:
            with contextlib.suppress(NoRoomToMove, WrongState):
                move_claim_to_node(principal=SYSTEM, claim=claim)
        found[count(agents)] += 1
        assert_books_agree()
    return found


@pytest.mark.parametrize("seed", seeds(RUNS))
def test_programs_run_once_and_are_never_lost_whatever_fails(cast: Cast, seed: int) -> None:
    agents, claim, chance = scene(cast, seed)
    found = run_once(agents, claim, chance)
    assert set(found) <= {(0, True), (1, True)}, found
    # Without further events it ends somewhere, and runs there or stands still where its programs are.
    for _ in range(8):
        for agent in agents:
            agent.listen()
            agent.act()
    claim.refresh_from_db()
    assert claim.state in ("active", "suspended"), (claim.state, claim.reasons)
    assert count(agents) == (claim.state == "active", True)
    assert Node.objects.filter(host_memory_used_mib__gt=0).exists() == (claim.state == "suspended")
    assert_books_agree()


def copies_after_a_failed_restore(cast: Cast) -> tuple[int, bool]:
    """Let the new node fail to restore what it got; return what is left once all orders are obeyed."""
    agents, claim, chance = scene(cast, 0)
    old, new = agents
    move_claim_to_node(principal=SYSTEM, claim=claim)
    chance.random = lambda: 0.5  # type: ignore[method-assign]
    for agent in (new, old):
        agent.listen()
        agent.act()
    chance.random = lambda: 0.0  # type: ignore[method-assign]
    for agent in (new, old) * 4:
        agent.listen()
        agent.act()
    return count(agents)


def test_what_cannot_be_restored_is_still_at_its_source(cast: Cast) -> None:
    assert copies_after_a_failed_restore(cast) == (1, True)


def test_control_a_source_that_is_released_once_it_has_sent_loses_them(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = reports._go_on

    def too_early(claim: Claim, homes: Sequence[Assignment], others: Sequence[Assignment]) -> dict[str, Any]:
        values = go_on(claim, homes, others)
        for item in homes:
            if item.state == AssignmentState.SUSPENDED:
                item.state, item.generation = AssignmentState.RELEASING, item.generation + 1
        return values

    monkeypatch.setattr(reports, "_go_on", too_early)
    assert copies_after_a_failed_restore(cast) == (0, False)


def carry_all(cast: Cast, *, narrow: str, racers: int = FEW) -> Counter[str]:
    """Let claims be carried at once; the node of this name has memory for ten."""
    give_plenty(cast.acme)
    machine = Machine("gpu1", cast.pool, host_memory_mib=200 * GIB, carry=True)
    claims = running(cast, machine, racers)
    Claim.objects.update(movable=True)
    other = Machine("gpu2", cast.pool, host_memory_mib=200 * GIB, carry=True, gpus=GPUS).stay_online()
    Node.objects.filter(name=narrow).update(host_memory_mib=ROOM * GIB)
    # To one GPU, one order would wait for the other.
    there = [other.gpu(number % GPUS).uuid for number in range(racers)]
    order = partial(move_claim_to_node, principal=SYSTEM, node="gpu2")
    return outcomes(race([partial(order, claim=one, gpus=[gpu]) for one, gpu in zip(claims, there, strict=True)]))


@pytest.mark.parametrize("racers", scales(FEW, MANY))
@pytest.mark.parametrize("narrow", ["gpu1", "gpu2"])
@pytest.mark.django_db(transaction=True)
def test_carries_with_memory_for_ten_are_exactly_ten(real_cast: Cast, narrow: str, racers: int) -> None:
    assert carry_all(real_cast, narrow=narrow, racers=racers) == {"Claim": ROOM, "NoHostMemory": racers - ROOM}
    used = dict(Node.objects.values_list("name", "host_memory_used_mib"))
    assert used == {"gpu1": ROOM * GIB, "gpu2": ROOM * GIB}
    assert not differences()
    assert_books_agree()


@pytest.mark.django_db(transaction=True)
def test_control_the_race_for_the_memory_is_real_without_the_guard(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def naive_take(*, node_id: int, memory_mib: int) -> bool:
        node = Node.objects.get(pk=node_id)
        time.sleep(A_MOMENT_SECONDS)
        if node.host_memory_mib - node.host_memory_used_mib < memory_mib:
            return False
        Node.objects.filter(pk=node_id).update(host_memory_used_mib=F("host_memory_used_mib") + memory_mib)
        return True

    monkeypatch.setattr(capacity, "take_host_memory", naive_take)
    # These let one order wait for the other, too: of one tenant, from one GPU.
    monkeypatch.setattr(carrying, "charge_quota", lambda *_: None)
    monkeypatch.setattr(ordering, "lock_gpus", Gpu.objects.in_bulk)
    assert carry_all(real_cast, narrow="gpu1")["NoHostMemory"] < FEW - ROOM
