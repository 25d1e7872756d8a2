"""Reports of an agent on its assignments: only news about desired ones counts."""

import pytest

from agent import wire
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from tests.cast import Cast, Machine, assert_books_agree, give_plenty, placed, seen
from tests.scheduling.routes import dump_database


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool)


def release(claim: Claim) -> Claim:
    return release_claim(principal=SYSTEM, claim=claim)


def state_of(row: Claim | Assignment) -> str:
    row.refresh_from_db()
    return str(row.state)


def observations(assignment: Assignment) -> dict[str, tuple[wire.Observation, ...]]:
    return {
        "a generation that was never wanted": (seen(assignment, generation=99),),
        "the largest generation": (seen(assignment, "released", generation=2**31 - 1),),
        "an older generation that failed": (seen(assignment, "failed", generation=1, reason="old"),),
        "an older generation in force": (seen(assignment, generation=1),),
        "an end that was not asked for": (seen(assignment, "released"),),
        "the beginning of an end that was not asked for": (seen(assignment, "releasing"),),
        "what was said before": (seen(assignment),),
        "an assignment that is not there": (
            wire.Observation(uid="00000000-0000-0000-0000-000000000000", generation=1, state="released"),
        ),
        "nothing": (),
    }


@pytest.mark.parametrize("what", [
    "a generation that was never wanted", "the largest generation", "an older generation that failed",
    "an older generation in force", "an end that was not asked for", "the beginning of an end that was not asked for",
    "what was said before", "an assignment that is not there", "nothing",
])  # fmt: skip
def test_a_report_that_is_stale_bogus_or_no_news_changes_nothing(cast: Cast, machine: Machine, what: str) -> None:
    claim, assignment = placed(cast, machine)
    resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(core_request=40))
    machine.obey()
    before = dump_database()
    machine.say(*observations(assignment)[what])
    machine.say(*observations(assignment)[what], frame=0)
    assert dump_database() == before


@pytest.mark.parametrize("generation", [0, 1, 3, 2**31 - 1])
@pytest.mark.parametrize("state", ["released", "in_force", "failed", "over_limit"])
def test_only_the_wanted_generation_ends_a_release(
    cast: Cast, machine: Machine, state: wire.AssignmentState, generation: int
) -> None:
    claim, assignment = placed(cast, machine)
    release(claim)
    machine.say(seen(assignment, state, generation=generation))
    assert (state_of(claim), state_of(assignment)) == ("releasing", "releasing")
    assert machine.gpu().core_used == 30


def test_another_nodes_agent_cannot_speak_for_an_assignment(cast: Cast, machine: Machine) -> None:
    claim, assignment = placed(cast, machine)
    release(claim)
    stranger = Machine("gpu2", cast.pool)
    before = dump_database()
    stranger.say(seen(assignment, "released"), frame=0)
    assert dump_database() == before


def test_an_assignment_named_twice_in_one_frame_counts_once(cast: Cast, machine: Machine) -> None:
    claim, assignment = placed(cast, machine)
    release(claim)
    machine.say(seen(assignment, "released"), seen(assignment, "released"))
    assert state_of(claim) == "released"
    assert_books_agree()
