"""Moves between nodes in any order of orders, reports and refusals, and at once: run at one place, promised once."""

import contextlib
import random
from collections import Counter
from functools import partial

import pytest

from agent import wire
from apps.accounting.services.ledger_check import differences
from apps.nodes.models import Gpu
from apps.nodes.services import capacity
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.claims.lifecycle import WrongState
from apps.suspension.between import ordering, reports
from apps.suspension.between.expiring import give_up
from apps.suspension.between.ordering import move_claim_to_node
from apps.suspension.moving import CannotMove, NoRoomToMove
from tests.cast import GIB, Cast, Machine, assert_books_agree, done, give_plenty, placed, seen
from tests.matrix import seeds
from tests.racing import outcomes, race
from tests.suspension.test_move_races import naive_take
from tests.suspension.test_races import running

STEPS, RUNS = 40, 6
RACERS, ROOM = 40, 20


class Agent:
    """An agent that obeys late: it has a desired state for a while before it has done and reported it."""

    def __init__(self, machine: Machine, chance: random.Random) -> None:
        self.machine, self._chance = machine, chance
        self._order: list[wire.Assignment] = []
        # The claims of which programs may run here: from the order to run them until the report that they do not.
        self.may_run: set[str] = set()

    def listen(self) -> None:
        self._order = list(desired_state(self.machine.node).assignments)
        self.may_run |= {one.claim_uid for one in self._order if one.present and not one.suspended}

    def act(self) -> None:
        """Do what was ordered, or fail to, and report it."""
        told = []
        for one in self._order:
            one_report = done(one)
            if self._chance.random() < 0.15 and one.present:
                words = "An injected failure."
                state: wire.AssignmentState = "in_force" if one.suspended else "failed"
                one_report = wire.Observation(
                    uid=one.uid, generation=one.generation, state=state, reason=words, suspend_refused=words
                )
            if one_report.state in ("suspended", "released"):
                self.may_run.discard(one.claim_uid)
            told.append(one_report)
        self.machine.say(*told)


def run_once(cast: Cast, agents: list[Agent], claim: Claim, chance: random.Random) -> Counter[int]:
    """Move the claim to and fro in a random order of events; return how often it could run at how many places."""
    found: Counter[int] = Counter()
    uid = str(claim.uid)
    for _ in range(STEPS):
        agent = chance.choice(agents)
        chance.choice([agent.listen, agent.act, agent.listen, agent.act, give_up])()
        claim.refresh_from_db()
        if claim.state == "active" and chance.random() < 0.5:
            with contextlib.suppress(NoRoomToMove, WrongState):
                move_claim_to_node(principal=SYSTEM, claim=claim, restart=True)
        found[sum(uid in one.may_run for one in agents)] += 1
        assert_books_agree()
    return found


def scene(cast: Cast, seed: int) -> tuple[list[Agent], Claim, random.Random]:
    chance = random.Random(seed)  # noqa: S311
    machines = [Machine(name, cast.pool, host_memory_mib=20 * GIB).stay_online() for name in ("gpu1", "gpu2")]
    claim, _ = placed(cast, machines[0], movable=True)
    agents = [Agent(machine, chance) for machine in machines]
    for agent in agents:
        agent.listen()
    return agents, claim, chance


@pytest.mark.parametrize("seed", seeds(RUNS))
def test_programs_may_run_at_one_node_whatever_fails_and_whoever_is_late(cast: Cast, seed: int) -> None:
    give_plenty(cast.acme)
    agents, claim, chance = scene(cast, seed)
    found = run_once(cast, agents, claim, chance)
    assert set(found) <= {0, 1}, found
    # Without further failures it ends somewhere, and runs there.
    for _ in range(8):
        for agent in agents:
            agent.machine.obey()
    claim.refresh_from_db()
    assert claim.state in ("active", "failed"), (claim.state, claim.reasons)
    assert sum(one.present for agent in agents for one in desired_state(agent.machine.node).assignments) == 1
    assert_books_agree()


def places_after_a_failure_at_the_new_node(cast: Cast) -> int:
    """Let the new node fail after its order to run the claim; return at how many nodes it may run then."""
    give_plenty(cast.acme)
    (old, new), claim, _ = scene(cast, 0)
    move_claim_to_node(principal=SYSTEM, claim=claim, restart=True)
    new.machine.obey()
    old.listen()
    old.machine.obey()
    old.may_run.clear()
    new.listen()
    target = claim.assignments.get(counterpart__isnull=False)
    new.machine.say(seen(target, "failed", reason="An injected failure."))
    old.listen()
    return sum(str(claim.uid) in one.may_run for one in (old, new))


def test_a_new_node_that_fails_late_must_confirm_its_end(cast: Cast) -> None:
    assert places_after_a_failure_at_the_new_node(cast) == 1


def test_control_the_way_back_without_the_new_nodes_word_runs_it_twice(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_back = reports._go_back

    def at_once(claim: Claim, homes: list[Assignment], targets: list[Assignment], why: str) -> dict[str, object]:
        values = go_back(claim, homes, targets, why)
        reports._let_run(claim, homes)
        return values

    monkeypatch.setattr(reports, "_go_back", at_once)
    assert places_after_a_failure_at_the_new_node(cast) == 2


def move_all(cast: Cast) -> Counter[str]:
    """Let forty claims move to a node with room for twenty at once."""
    give_plenty(cast.acme)
    machine = Machine("gpu1", cast.pool, host_memory_mib=200 * GIB)
    claims = running(cast, machine, RACERS)
    Claim.objects.update(movable=True)
    Machine("gpu2", cast.pool, gpus=1).stay_online()
    return outcomes(
        race([partial(move_claim_to_node, principal=SYSTEM, claim=one, node="gpu2", restart=True) for one in claims])
    )


@pytest.mark.django_db(transaction=True)
def test_forty_moves_to_a_node_with_room_for_twenty_move_exactly_twenty(real_cast: Cast) -> None:
    assert move_all(real_cast) == {"Claim": ROOM, "NoRoomToMove": RACERS - ROOM}
    assert Assignment.objects.filter(counterpart__isnull=False).count() == ROOM
    assert not differences()
    assert_books_agree()


@pytest.mark.django_db(transaction=True)
def test_control_the_race_for_the_node_is_real_without_the_guards(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "take", naive_take)
    monkeypatch.setattr(ordering, "lock_gpus", Gpu.objects.in_bulk)
    # More find room than there is; the row's constraint is the last that stands.
    assert move_all(real_cast)["NoRoomToMove"] < RACERS - ROOM


def test_a_claim_on_borrowed_core_stays(cast: Cast) -> None:
    give_plenty(cast.acme)
    machines = [Machine(name, cast.pool, host_memory_mib=20 * GIB).stay_online() for name in ("gpu1", "gpu2")]
    claim, _ = placed(cast, machines[0], movable=True)
    Claim.objects.filter(pk=claim.pk).update(borrowed_core=10)
    with pytest.raises(CannotMove, match="borrowed core"):
        move_claim_to_node(principal=SYSTEM, claim=claim, restart=True)
