"""Choices of each placement policy."""

from dataclasses import replace
from itertools import combinations

import pytest

from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.placement.mix import FULL, MOST_TYPES, Mix, rounded
from apps.scheduling.core.values import GpuState, NodeState, Placed, Request

WHOLE_GPU = Request(1, 100, 8)


def gpu(node: str, index: int, core: int = 100, memory: int = 24) -> GpuState:
    return GpuState(f"{node}{index}", node, index, "A10", 24, core, memory)


def links(node: str, *groups: tuple[str, str]) -> tuple[tuple[str, str, str], ...]:
    """Return links between all pairs within each group, of its type."""
    return tuple((f"{node}{a}", f"{node}{b}", word) for members, word in groups for a, b in combinations(members, 2))


def choose(fleet: Fleet, request: Request) -> tuple[str, ...]:
    answer = fleet.place(request)
    assert isinstance(answer, Placed), answer
    return answer.gpus


@pytest.mark.parametrize("policy", ["topology", "gpucloud"])
def test_several_gpus_are_as_near_as_can_be(policy: str) -> None:
    node = NodeState("a", links=links("a", ("01", "pcie"), ("23", "nvlink"), ("4567", "numa")))
    fleet = Fleet([gpu("a", index) for index in range(8)], [node], policy=policy)
    assert choose(fleet, replace(WHOLE_GPU, gpu_count=2)) == ("a2", "a3")
    assert choose(fleet, replace(WHOLE_GPU, gpu_count=4)) == ("a4", "a5", "a6", "a7")


@pytest.mark.parametrize("policy", ["topology", "gpucloud"])
def test_one_whole_gpu_is_taken_where_the_fewest_links_are_broken(policy: str) -> None:
    node = NodeState("a", links=links("a", ("012", "nvlink"), ("34", "nvlink")))
    fleet = Fleet([gpu("a", index) for index in range(6)], [node], policy=policy)
    assert choose(fleet, WHOLE_GPU) == ("a5",)
    fleet.take(("a5",), WHOLE_GPU)
    assert choose(fleet, WHOLE_GPU) == ("a3",)


def test_a_part_of_a_gpu_goes_to_the_fullest_also_by_topology() -> None:
    fleet = Fleet([gpu("a", 0), gpu("b", 0, core=40)], policy="topology")
    assert choose(fleet, Request(1, 30, 8)) == ("b0",)


def test_spread_takes_the_emptiest_gpu_of_the_emptiest_node() -> None:
    fleet = Fleet([gpu("a", 0), gpu("a", 1, core=50), gpu("b", 0), gpu("b", 1)], policy="spread")
    assert choose(fleet, Request(1, 30, 8)) == ("b0",)


def test_gpu_admission_fills_the_fullest_node_that_fits() -> None:
    # The fullest GPU that fits is b's; the node with the least left is a.
    fleet = Fleet([gpu("a", 0, core=60), gpu("b", 0, core=30), gpu("b", 1)], policy="gpu-admission")
    assert choose(fleet, Request(1, 30, 8)) == ("a0",)
    assert choose(fleet, Request(1, 100, 8)) == ("b1",)


def test_random_draws_by_the_claims_own_id_and_the_same_again() -> None:
    fleet = Fleet([gpu(node, index) for node in "abcd" for index in range(4)], policy="random")
    drawn = [choose(fleet, Request(1, 10, 1, key=f"claim {number}")) for number in range(60)]
    assert len(set(drawn)) > 10
    assert drawn == [choose(fleet, Request(1, 10, 1, key=f"claim {number}")) for number in range(60)]


@pytest.mark.parametrize("policy", ["fgd", "gpucloud"])
def test_what_is_typically_asked_for_still_fits_afterwards(policy: str) -> None:
    # Binpack would take the GPU with 60 left and leave 20 on it, which no request here can use.
    gpus, small = [gpu("a", 0, core=60), gpu("b", 0, core=80)], Request(1, 40, 1)
    typical = [(Request(1, 60, 1), 10), (Request(1, 40, 1), 50)]
    assert choose(Fleet(gpus, policy="binpack"), small) == ("a0",)
    assert choose(Fleet(gpus, policy=policy, mix=typical), small) == ("b0",)


def test_the_mix_is_learned_from_what_arrives() -> None:
    gpus, small = [gpu("a", 0, core=60), gpu("b", 0, core=80)], Request(1, 40, 1)
    fleet = Fleet(gpus, policy="fgd", mix=[(Request(1, 20, 1), 60)])
    before = choose(fleet, small)
    for number in range(600):
        fleet.learn(Request(1, 60 if number % 6 == 0 else 40, 1))
    assert (before, choose(fleet, small)) == (("a0",), ("b0",))


def test_the_mix_forgets_what_no_longer_arrives_and_stays_small() -> None:
    mix = Mix()
    mix.learn(Request(1, 10, 1))
    for number in range(2 * FULL):
        mix.learn(Request(1, 20 + number % 3, 1))
    assert {kind.core for kind, _ in mix.seen} == {20, 21, 22}
    assert sum(weight for _, weight in mix.seen) <= FULL
    many = Mix((Request(1, 1, memory, cpu_milli=cpu), 1) for memory in range(1, 50) for cpu in range(50))
    assert len(many.seen) == MOST_TYPES


@pytest.mark.parametrize(("amount", "told"), [(0, 0), (7, 7), (9, 10), (1024, 1024), (1025, 1280), (81_920, 81_920)])
def test_memory_is_told_apart_by_three_binary_digits(amount: int, told: int) -> None:
    assert rounded(amount) == told


def test_a_policy_or_back_end_that_is_not_there_is_said_so() -> None:
    with pytest.raises(ValueError, match="no such policy: best"):
        Fleet((), policy="best")
    with pytest.raises(ValueError, match="no such back end: fortran"):
        Fleet((), backend="fortran")


def test_power_wakes_no_idle_gpu_while_one_in_use_has_room() -> None:
    """An H100 costs 630 watts to wake and a T4 60; what runs already costs nothing, whatever the fragments."""
    idle, used = gpu("a", 0), replace(gpu("b", 0, core=50), model="NVIDIA H100")
    small = Request(1, 30, 1)
    assert choose(Fleet([idle, used], policy="power"), small) == ("b0",)
    woken = [replace(gpu("a", 0), model="NVIDIA H100"), replace(gpu("b", 0), model="Tesla T4")]
    assert choose(Fleet(woken, policy="power"), small) == ("b0",)
    packages = [NodeState(name, cpu_milli_free=free, cpu_milli=64_000) for name, free in (("a", 64_000), ("b", 40_000))]
    cpu = replace(small, cpu_milli=4000)
    assert choose(Fleet([gpu("a", 0), gpu("b", 0)], packages, policy="power"), cpu) == ("b0",), "its package is in use"
