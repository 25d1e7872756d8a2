"""Pools with static MIG instances: claims get what an operator made, and nothing is made or removed."""

from typing import Any

import pytest

from agent import wire
from apps.nodes.services import nodes
from apps.quotas.principals import SYSTEM
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Cast, Machine, assert_books_agree, give_plenty, hello
from tests.scheduling.divided import on_the_wire
from tests.scheduling.test_isolation import H200, divided, hard, refused

MADE = [
    wire.MigPlace(profile="2g.35gb", start=0, size=2),
    wire.MigPlace(profile="1g.18gb", start=3, size=1),
    wire.MigPlace(profile="3g.71gb", start=4, size=4),
]


@pytest.fixture
def machine(cast: Cast) -> Machine:
    """Return a node whose first GPU is in MIG mode, with three instances, in a pool where they are static."""
    give_plenty(cast.acme)
    change_pool(principal=SYSTEM, pool=cast.pool, mig="static")
    cast.pool.refresh_from_db()
    return divided(cast, mig={0: on_the_wire(foreign=MADE)})


def report(machine: Machine, *made: wire.MigPlace) -> None:
    """Let the agent report these instances."""
    facts: dict[str, Any] = {**H200, "mig": {0: on_the_wire(foreign=list(made))}}
    nodes.take_hello(node=machine.node, hello=hello("mig1", **facts))


def places(machine: Machine) -> list[tuple[wire.MigPlace | None, bool]]:
    return [(one.mig, one.prepared) for one in desired_state(machine.node).assignments]


def test_claims_get_the_instances_that_are_there_and_the_next_one_waits(cast: Cast, machine: Machine) -> None:
    first = hard(cast, core_request=20, memory_mib=1024)
    second = hard(cast, profile="2g.35gb")
    run_round(cast.pool)
    machine.obey()
    for claim in (first, second):
        claim.refresh_from_db()
    assert (first.profile, first.state, second.state) == ("2g.35gb", "active", "queued")
    assert [reason["code"] for reason in second.reasons] == ["gpu-not-mig", "mig-place"]
    assert places(machine) == [(MADE[0], True)]
    release_claim(principal=SYSTEM, claim=first)
    machine.obey()
    run_round(cast.pool)
    second.refresh_from_db()
    assert second.state == "assigned"
    assert_books_agree()


def test_a_claim_gets_the_smallest_instance_that_was_made_though_the_gpu_has_smaller_profiles(
    cast: Cast, machine: Machine
) -> None:
    # 1g.35gb would do.
    assert hard(cast, core_request=10, memory_mib=20_000).profile == "2g.35gb"


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"profile": "4g.71gb"}, "unknown-profile"),
        ({"core_request": 50, "memory_mib": 1}, "profile-too-small"),
    ],
)
def test_what_no_instance_has_is_refused_with_those_that_are_there(
    cast: Cast, machine: Machine, asked: dict[str, Any], code: str
) -> None:
    status, found, detail = refused(cast, **asked)
    assert (status, found) == (422, code)
    assert "There are: 1g.18gb" in detail
    assert "7g" not in detail


def test_a_pool_without_an_instance_says_what_to_do(cast: Cast, machine: Machine) -> None:
    report(machine)
    status, code, detail = refused(cast, core_request=1, memory_mib=1)
    assert (status, code) == (422, "no-mig-gpu")
    assert "has static MIG instances, and none is there" in detail


def test_an_instance_that_is_made_later_is_given_to_a_claim_that_waits(cast: Cast, machine: Machine) -> None:
    claims = [hard(cast, profile="1g.18gb") for _ in range(2)]
    run_round(cast.pool)
    report(machine, *MADE, wire.MigPlace(profile="1g.18gb", start=2, size=1))
    run_round(cast.pool)
    for claim in claims:
        claim.refresh_from_db()
        assert claim.state == "assigned"
    assert sorted(place.start for place, _ in places(machine) if place) == [2, 3]


def test_a_pool_that_becomes_static_keeps_what_was_made_on_demand_until_its_claim_leaves(cast: Cast) -> None:
    give_plenty(cast.acme)
    machine = divided(cast, mig={0: on_the_wire(foreign=MADE[:1])})
    claim = hard(cast, profile="1g.18gb")
    run_round(cast.pool)
    machine.obey()
    assert cast.olga.patch("pools/default/", {"mig": "static"}).status == 200
    cast.pool.refresh_from_db()
    claim.refresh_from_db()
    assert claim.state == "active"
    status, code, _ = refused(cast, profile="1g.18gb")
    assert (status, code) == (422, "unknown-profile")
    prepared = hard(cast, profile="2g.35gb")
    run_round(cast.pool)
    assert prepared.assignments.get().mig_start == 0
    assert_books_agree()
