"""Consolidation moves: the capacity that they free; they respect bounds and labels, and change nothing."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.quotas.models import AuditEvent
from apps.scheduling.core.consolidation import MoveBounds, PlacedClaim, Plan, free_gpus, make_room
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.values import GpuState, NodeState, Placed, Request
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import GIB, Cast, Machine, ask, give_plenty, placed

BOUNDS = MoveBounds()
MEMORY = 1000


def gpus(count: int, *, per_node: int = 4) -> list[GpuState]:
    return [
        GpuState(f"g{number}", f"n{number // per_node}", number % per_node, "A", MEMORY, 100, MEMORY)
        for number in range(count)
    ]


def seat(fleet: Fleet, seats: Sequence[tuple[str, int, int, str]]) -> list[PlacedClaim]:
    """Place claims (name, core, memory, GPU); all of their memory is in use."""
    sitting = []
    for name, core, memory, gpu in seats:
        request = Request(1, core, memory, tenant="t")
        fleet.take([gpu], request)
        sitting.append(PlacedClaim(name, request, (gpu,), memory))
    return sitting


def steps(plan: Plan | None) -> list[tuple[str, tuple[str, ...]]]:
    return [(move.claim, move.to_gpus) for move in plan.moves] if plan else []


def test_the_cheapest_move_makes_room_for_who_waits() -> None:
    fleet = Fleet(gpus(3), policy="binpack")
    sitting = seat(fleet, [("a", 50, 500, "g0"), ("b", 50, 100, "g1"), ("c", 70, 300, "g2")])
    request = Request(1, 60, 100)
    before = fleet.gpus()
    plan = make_room(fleet, sitting, request, BOUNDS)
    assert steps(plan) == [("b", ("g0",))]
    assert plan is not None
    assert (plan.cost_mib, plan.frees) == (100, ("g1",))
    assert fleet.gpus() == before, "a plan changes nothing"


@pytest.mark.parametrize(("expected", "moved"), [({}, "b"), ({"a": 0.0}, "a"), ({"a": 0.0, "b": 0.0}, "b")])
def test_of_claims_that_could_move_the_one_that_will_rest_is_chosen(expected: dict[str, float], moved: str) -> None:
    fleet = Fleet(gpus(2), policy="binpack")
    seats = [("a", 40, 300, "g0"), ("b", 40, 200, "g0"), ("stays", 50, 100, "g1")]
    sitting = [replace(one, expected_percent=expected.get(one.claim, 100.0)) for one in seat(fleet, seats)[:2]]
    assert steps(make_room(fleet, sitting, Request(1, 60, 100), BOUNDS)) == [(moved, ("g1",))]


def test_what_fits_as_it_is_needs_no_move() -> None:
    fleet = Fleet(gpus(2), policy="binpack")
    assert make_room(fleet, seat(fleet, [("a", 50, 500, "g0")]), Request(1, 60, 100), BOUNDS) is None


def test_from_a_gpu_that_is_used_twice_more_must_go() -> None:
    """A pod uses 60 of it without a claim: that much of the freed capacity is not free."""
    fleet = Fleet(gpus(2), policy="binpack")
    sitting = seat(fleet, [("a", 40, 100, "g0"), ("b", 40, 100, "g0"), ("c", 10, 200, "g1")])
    fleet.set_gpu(replace(fleet.gpus()[0], core_free=0, core_over=40))
    plan = make_room(fleet, sitting[:2], Request(1, 30, 850), BOUNDS)
    assert steps(plan) == [("a", ("g1",)), ("b", ("g1",))]
    # 60 of it belong to no claim and cannot be moved.
    assert make_room(fleet, sitting[:2], Request(1, 41, 850), BOUNDS) is None


@pytest.mark.parametrize("bounds", [MoveBounds(most_moves=1), MoveBounds(most_memory_mib=199)])
def test_moves_are_bounded_in_number_and_memory(bounds: MoveBounds) -> None:
    def plan(bounds: MoveBounds) -> Plan | None:
        fleet = Fleet(gpus(2), policy="binpack")
        sitting = seat(fleet, [("a", 20, 100, "g0"), ("b", 20, 100, "g0"), ("stays", 50, 500, "g1")])[:2]
        return make_room(fleet, sitting, Request(1, 100, 100), bounds)

    assert len(steps(plan(BOUNDS))) == 2
    assert plan(bounds) is None


def test_several_gpus_of_one_node_are_left_for_who_asks_for_several() -> None:
    fleet = Fleet(gpus(4, per_node=2), policy="binpack")
    sitting = seat(fleet, [("a", 30, 100, "g0"), ("b", 30, 100, "g1"), ("c", 40, 100, "g2"), ("d", 40, 600, "g3")])
    plan = make_room(fleet, sitting, Request(2, 100, 100), BOUNDS)
    assert plan is not None
    assert [move.claim for move in plan.moves] == ["a", "b"]
    assert plan.frees == ("g0", "g1")


def test_a_claim_is_moved_where_its_labels_let_it_only() -> None:
    fleet = Fleet(gpus(2), policy="binpack")
    apart = Request(1, 30, 100, tenant="t", anti_affinity="apart")
    for gpu in ("g0", "g1"):
        fleet.take([gpu], apart)
    sitting = [PlacedClaim(f"c{gpu}", apart, (gpu,), 100) for gpu in ("g0", "g1")]
    assert make_room(fleet, sitting, Request(1, 100, 100), BOUNDS) is None
    fleet.set_gpu(gpus(3)[2])
    fleet.take(["g2"], Request(1, 10, 10))
    assert steps(make_room(fleet, sitting, Request(1, 100, 100), BOUNDS)) == [("cg0", ("g2",))]


def test_room_is_made_on_the_nodes_that_are_asked_for_only() -> None:
    nodes = [NodeState("n0", (("zone", "a"),)), NodeState("n1", (("zone", "b"),))]
    fleet = Fleet(gpus(4, per_node=2), nodes, policy="binpack")
    sitting = seat(fleet, [("a", 30, 100, "g0"), ("b", 30, 500, "g2"), ("c", 60, 10, "g1"), ("d", 60, 10, "g3")])
    request = Request(1, 100, 100, node_selector=(("zone", "b"),))
    plan = make_room(fleet, sitting, request, BOUNDS)
    assert plan is not None
    assert ([move.claim for move in plan.moves], plan.frees) == (["d"], ("g3",))


def test_half_empty_gpus_are_put_together() -> None:
    fleet = Fleet(gpus(4), policy="binpack")
    sitting = seat(fleet, [("a", 40, 100, "g0"), ("b", 40, 200, "g1"), ("c", 40, 300, "g2"), ("d", 90, 10, "g3")])
    plan = free_gpus(fleet, sitting, BOUNDS)
    assert plan is not None
    assert ([move.claim for move in plan.moves], plan.frees) == (["a"], ("g0",))
    assert free_gpus(Fleet(gpus(4), policy="binpack"), [], BOUNDS) is None


def test_a_gpu_with_something_that_cannot_be_moved_is_left_as_it_is() -> None:
    fleet = Fleet(gpus(2), policy="binpack")
    sitting = seat(fleet, [("a", 20, 100, "g0"), ("b", 60, 100, "g1")])
    fleet.take(["g0"], Request(1, 5, 5))
    assert "g0" not in (plan.frees if (plan := free_gpus(fleet, sitting, BOUNDS)) else ())


shares = st.tuples(st.integers(1, 100), st.integers(1, MEMORY))
small = st.tuples(st.integers(1, 60), st.integers(1, 600), st.integers(0, 7))


@pytest.mark.slow
@given(st.lists(small, max_size=24), shares, st.integers(1, 4), st.integers(1, 6))
def test_a_plan_that_is_carried_out_step_by_step_keeps_every_promise(
    seats: list[tuple[int, int, int]], asked: tuple[int, int], count: int, most_moves: int
) -> None:
    """Replay the moves in order on another fleet, which refuses what does not fit; then place the claim itself."""
    fleet, sitting = Fleet(gpus(8), policy="binpack"), list[PlacedClaim]()
    for number, (core, memory, at) in enumerate(seats):
        if fleet.gpus()[at].core_free >= core and fleet.gpus()[at].memory_free_mib >= memory:
            sitting += seat(fleet, [(f"c{number:02}", core, memory, f"g{at}")])
    bounds, request = replace(BOUNDS, most_moves=most_moves, most_memory_mib=2000), Request(count, *asked)
    before = list(fleet.gpus())
    waiting, whole = make_room(fleet, sitting, request, bounds), None
    assert list(fleet.gpus()) == before
    whole = free_gpus(fleet, sitting, bounds)
    for plan, then in ((waiting, request), (whole, None)):
        if plan is None:
            continue
        assert len(plan.moves) <= most_moves
        assert plan.cost_mib <= 2000
        other = {gpu.uuid: gpu for gpu in before}
        by_claim = {item.claim: item for item in sitting}
        for move in plan.moves:
            carry_out(other, by_claim[move.claim].request, move.from_gpus, -1)
            carry_out(other, by_claim[move.claim].request, move.to_gpus, 1)
        assert all(other[uuid].core_free == 100 and other[uuid].memory_free_mib == MEMORY for uuid in plan.frees)
        if then is not None:
            assert isinstance(Fleet(other.values(), policy="binpack").place(then), Placed)
        else:
            free = sum(gpu.core_free == 100 for gpu in other.values())
            assert free == sum(gpu.core_free == 100 for gpu in before) + len(plan.frees)


def carry_out(fleet: dict[str, GpuState], request: Request, on: Sequence[str], sign: int) -> None:
    for uuid in on:
        gpu = fleet[uuid]
        core, memory = gpu.core_free - sign * request.core_request, gpu.memory_free_mib - sign * request.memory_mib
        assert core >= 0
        assert memory >= 0
        fleet[uuid] = replace(gpu, core_free=core, memory_free_mib=memory)


def test_an_operator_sees_for_whom_what_would_move_and_nothing_moves(cast: Cast) -> None:
    give_plenty(cast.acme)
    machine = Machine("gpu1", cast.pool, gpus=2)
    first, _ = placed(cast, machine, core_request=60, memory_mib=8 * GIB)
    _, second = placed(cast, machine, core_request=45, memory_mib=4 * GIB)
    shrunk = cast.max.patch(f"claims/{first.uid}/", {"core_request": 40, "core_limit": 40})
    assert shrunk.status == 200
    machine.obey()
    big = ask(cast, core_request=100)
    run_round(cast.pool)
    big.refresh_from_db()
    assert big.state == "queued"
    answer = cast.olga.get("pools/default/consolidation/")
    plan, other = answer.body["plans"]
    assert plan["waiting_claim"] == str(big.uid)
    (move,) = plan["moves"]
    assert (move["claim"], move["from_gpus"], move["cost_mib"]) == (
        str(second.claim.uid),
        [second.gpu.uuid],
        4 * GIB,
    )
    assert plan["frees"] == [second.gpu.uuid]
    assert "train of acme could start" in plan["explanation"]
    assert other["waiting_claim"] is None
    assert Assignment.objects.filter(pk=second.pk, gpu=second.gpu, state="in_force").exists()
    empty = cast.olga.get("pools/default/consolidation/?most_memory_mib=100").body
    assert (empty["plans"], answer.body["explanation"]) == ([], None)
    assert empty["explanation"] == (
        "2 claims could be moved, but no 4 moves of at most 100 MiB leave a GPU wholly free, and none of the 1 at the "
        "queue's head would start after any."
    )
    asked = AuditEvent.objects.filter(action="pool.consolidation").order_by("pk")
    assert [(row.object_id, row.after and row.after["plans"]) for row in asked] == [("default", 2), ("default", 0)]
    assert cast.olga.get("pools/default/consolidation/?most_moves=0").status == 400
    assert cast.anna.get("pools/default/consolidation/").code == "role-missing"


def test_a_running_pods_claim_is_moved_by_nobody(cast: Cast) -> None:
    """A SharePod's claim exists before its pod, which its controller recreates where the claim is."""
    give_plenty(cast.acme)
    machine = Machine("gpu1", cast.pool, gpus=2)
    for core in (60, 45):
        placed(cast, machine, core_request=core, memory_mib=GIB)
    first = Claim.objects.order_by("pk")[0]
    assert cast.max.patch(f"claims/{first.uid}/", {"core_request": 40, "core_limit": 40}).status == 200
    machine.obey()
    names = {"namespace": "ml", "name": "web-0", "container": "cuda"}
    Claim.objects.update(pod=names)
    assert len(cast.olga.get("pools/default/consolidation/").body["plans"]) == 1
    Claim.objects.update(pod={**names, "uid": "its-own"})
    answer = cast.olga.get("pools/default/consolidation/").body
    assert (answer["plans"], "are no pod's" in answer["explanation"]) == ([], True)
