"""Places of MIG instances on one GPU, against brute force; and the choice of a GPU among several."""

import heapq
import random
from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.mig import Mig, Profile, core_percent
from apps.scheduling.core.placement import never_fits, place
from apps.scheduling.core.values import MIG_MODE, GpuState, NodeState, Placed, Refused, Request
from tests.scheduling.divided import MEMORY_MIB, PROFILES, profiles

# An instance, by profile and first slice.
Instance = tuple[Profile, int]


def slices(one: Instance) -> set[int]:
    profile, start = one
    return set(range(start, start + profile.size))


def every_place(model: str) -> list[Instance]:
    return [(profile, start) for profile in profiles(model) for start in profile.starts]


def are_apart(instances: list[Instance]) -> bool:
    return all(slices(a).isdisjoint(slices(b)) for a, b in combinations(instances, 2))


def most_of(profile: Profile, there: list[Instance]) -> int:
    """Return the most instances of the profile that fit beside those that are there: every set of places is tried."""
    places = [(profile, start) for start in profile.starts]
    return max(
        count
        for count in range(len(places) + 1)
        for chosen in combinations(places, count)
        if are_apart([*there, *chosen])
    )


def value(model: str, there: list[Instance]) -> int:
    return sum(profile.size * most_of(profile, there) for profile in profiles(model))


@st.composite
def divided(draw: st.DrawFn) -> tuple[str, list[Instance]]:
    """Return a model, and instances as any history of placements and releases may have left them."""
    model = draw(st.sampled_from(sorted(PROFILES)))
    there: list[Instance] = []
    for one in draw(st.permutations(every_place(model)))[: draw(st.integers(0, 12))]:
        if are_apart([*there, one]):
            there.append(one)
    return model, there


def state(model: str, there: list[Instance]) -> Mig:
    mig = Mig(profiles(model))
    for profile, start in there:
        mig = mig.occupied(profile.name, start)
    return mig


@given(divided())
def test_free_places_are_those_that_overlap_no_instance(gpu: tuple[str, list[Instance]]) -> None:
    model, there = gpu
    mig = state(model, there)
    for profile in profiles(model):
        expected = [start for start in profile.starts if are_apart([*there, (profile, start)])]
        assert list(mig.free_starts(profile.name)) == expected


@given(divided())
def test_the_chosen_place_costs_the_least_room_of_all_profiles(gpu: tuple[str, list[Instance]]) -> None:
    model, there = gpu
    mig, before = state(model, there), value(model, there)
    for profile in profiles(model):
        free = [(profile, start) for start in profile.starts if are_apart([*there, (profile, start)])]
        prices = {start: before - value(model, [*there, (profile, start)]) for _, start in free}
        chosen = mig.choose(profile.name)
        assert (chosen is None) == (not free)
        if chosen is not None:
            assert prices[chosen] == min(prices.values())
            assert mig.price(profile, chosen) == prices[chosen]


@given(divided())
def test_instances_that_fit_by_their_places_fit_by_core_and_memory(gpu: tuple[str, list[Instance]]) -> None:
    """So the placement table is all that decides: the GPU's other books are never in the way."""
    model, there = gpu
    assert sum(core_percent(profile, profiles(model)) for profile, _ in there) <= 100
    assert sum(profile.memory_mib for profile, _ in there) <= MEMORY_MIB[model]


@given(divided())
def test_what_is_vacated_is_as_if_it_had_never_been(gpu: tuple[str, list[Instance]]) -> None:
    model, there = gpu
    mig = state(model, there)
    for number, (profile, start) in enumerate(there):
        assert mig.vacated(profile.name, start) == state(model, [*there[:number], *there[number + 1 :]])


def test_the_first_small_instance_leaves_room_for_the_largest_others() -> None:
    mig = Mig(profiles())
    assert mig.choose("1g.18gb") == 6
    assert mig.occupied("1g.18gb", 6).free_starts("4g.71gb") == (0,)
    # Control: at the first slice it would not.
    assert mig.occupied("1g.18gb", 0).free_starts("4g.71gb") == ()


def test_not_every_3g_fits_beside_every_4g() -> None:
    mig = Mig(profiles())
    assert mig.occupied("3g.71gb", 0).free_starts("4g.71gb") == ()
    chosen = mig.choose("3g.71gb")
    assert chosen == 4
    assert mig.occupied("3g.71gb", chosen).free_starts("4g.71gb") == (0,)


class Cluster:
    """A dozen GPUs at which requests arrive for 110 % of their compute, each for a random time; none waits."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311
        self.gpus = [Mig(profiles("A100"))] * 12
        self.leaving: list[tuple[float, int, str, int]] = []

    def accept(self, choose: Callable[[list[Mig], str], tuple[int, int] | None]) -> float:
        """Return the accepted part of all compute slices that 1,500 requests ask for."""
        kinds, weights, now, accepted, asked = profiles("A100"), (4, 1, 3, 2, 1, 0.5), 0.0, 0, 0
        mean = sum(weight * kind.compute for weight, kind in zip(weights, kinds, strict=True)) / sum(weights)
        for _ in range(1500):
            now += self.random.expovariate(1.1 * 7 * len(self.gpus) / mean)
            while self.leaving and self.leaving[0][0] <= now:
                _, index, name, start = heapq.heappop(self.leaving)
                self.gpus[index] = self.gpus[index].vacated(name, start)
            (kind,) = self.random.choices(kinds, weights)
            ends, asked = now + self.random.expovariate(1), asked + kind.compute
            if (found := choose(self.gpus, kind.name)) is not None:
                index, start = found
                self.gpus[index] = self.gpus[index].occupied(kind.name, start)
                heapq.heappush(self.leaving, (ends, index, kind.name, start))
                accepted += kind.compute
        return accepted / asked


def by_price(gpus: list[Mig], name: str) -> tuple[int, int] | None:
    states = [gpu(f"a{index}", mig=mig, model="A100") for index, mig in enumerate(gpus)]
    profile = next(one for one in profiles("A100") if one.name == name)
    request = Request(1, core_percent(profile, profiles("A100")), profile.memory_mib, profile=name)
    answer = place(states, request)
    if isinstance(answer, Refused):
        return None
    index = int(answer.gpus[0][1:])
    start = gpus[index].choose(name)
    assert start is not None
    return index, start


def first_fit(gpus: list[Mig], name: str) -> tuple[int, int] | None:
    places = ((index, mig.free_starts(name)) for index, mig in enumerate(gpus))
    return next(((index, starts[0]) for index, starts in places if starts), None)


def best_fit(gpus: list[Mig], name: str) -> tuple[int, int] | None:
    fullest_first = sorted(range(len(gpus)), key=lambda index: (-gpus[index].used.bit_count(), index))
    places = ((index, gpus[index].free_starts(name)) for index in fullest_first)
    return next(((index, starts[0]) for index, starts in places if starts), None)


def test_a_loaded_cluster_accepts_more_than_by_first_fit_and_best_fit() -> None:
    mine, first, best = (
        sum(Cluster(seed).accept(choose) for seed in range(3)) / 3 for choose in (by_price, first_fit, best_fit)
    )
    assert mine > first + 0.015
    assert mine > best + 0.015


def gpu(name: str, *, mig: Mig | None = None, model: str = "NVIDIA H200", ready: bool = True) -> GpuState:
    node, index = name[0], int(name[1:])
    if mig is None:
        return GpuState(name, node, index, model, MEMORY_MIB["H200"], 100, MEMORY_MIB["H200"], ready)
    return GpuState(
        name, node, index, model, MEMORY_MIB["H200"], 100, MEMORY_MIB["H200"], False, MIG_MODE,
        mig=mig._replace(ready=ready),
    )  # fmt: skip


def hard(name: str = "2g.35gb", **more: object) -> Request:
    profile = next(one for one in profiles() if one.name == name)
    return Request(1, core_percent(profile, profiles()), profile.memory_mib, profile=name, **more)  # type: ignore[arg-type]


BACK_ENDS = ["python", "auto"]


@pytest.mark.parametrize("backend", BACK_ENDS)
def test_shares_and_instances_never_meet_on_a_gpu(backend: str) -> None:
    fleet = Fleet([gpu("a0", mig=Mig(profiles())), gpu("a1")], [NodeState("a")], backend=backend)
    for _ in range(3):
        assert fleet.place(hard()) == Placed(("a0",))
        fleet.take(("a0",), hard())
        share = Request(1, 20, 1024)
        assert fleet.place(share) == Placed(("a1",))
        fleet.take(("a1",), share)
    refused = fleet.place(hard())
    assert isinstance(refused, Refused)
    assert [(one.code, one.gpus) for one in refused.reasons] == [("gpu-not-mig", 1), ("mig-place", 1)]
    whole = fleet.place(Request(1, 100, 1024))
    assert isinstance(whole, Refused)
    assert [(one.code, one.detail) for one in whole.reasons] == [
        ("gpu-in-mig-mode", "1 GPU is in MIG mode, for claims with isolation hard only"),
        ("gpu-core", "1 GPU has less than 100 % core free"),
    ]


@pytest.mark.parametrize("backend", BACK_ENDS)
def test_what_is_given_back_can_be_had_again(backend: str) -> None:
    fleet = Fleet([gpu("a0", mig=Mig(profiles()))], [NodeState("a")], backend=backend)
    large, small = hard("4g.71gb"), hard("1g.18gb")
    for request in (large, small):
        fleet.take(("a0",), request)
    assert isinstance(fleet.place(large), Refused)
    fleet.give_back(("a0",), large)
    assert fleet.place(large) == Placed(("a0",))
    # One that ran before, by the slice at which it is.
    ran = hard("1g.18gb", start=6)
    fleet.give_back(("a0",), ran)
    (state_,) = fleet.gpus()
    assert state_.mig is not None
    assert (state_.mig.used, state_.core_free) == (0, 100)


def test_the_gpu_is_chosen_on_which_the_instance_costs_the_least_room() -> None:
    empty, begun = Mig(profiles()), Mig(profiles()).occupied("4g.71gb", 0)
    fleet = [gpu("a0", mig=empty), gpu("a1", mig=begun)]
    assert place(fleet, hard("3g.71gb")) == Placed(("a1",))


def test_a_refusal_counts_each_gpu_once() -> None:
    fleet = [
        gpu("a0"),
        gpu("a1", mig=Mig(profiles()), ready=False),
        gpu("a2", mig=Mig(profiles()), model="NVIDIA H100"),
        gpu("a3", mig=Mig(profiles("A100"))),
        gpu("a4", mig=Mig(profiles(), used=255)),
    ]
    answer = place(fleet, hard(gpu_model="NVIDIA H200"))
    assert isinstance(answer, Refused)
    assert {one.code: one.gpus for one in answer.reasons} == {
        "gpu-not-mig": 1, "node-unavailable": 1, "gpu-model": 1, "mig-profile": 1, "mig-place": 1,
    }  # fmt: skip


def test_a_profile_that_no_gpu_has_can_never_fit() -> None:
    full = [gpu("a0", mig=Mig(profiles(), used=255, ready=False))]
    assert never_fits(full, hard()) == ()
    (reason,) = never_fits([gpu("a0", mig=Mig(profiles("A100")))], hard())
    assert reason.code == "mig-profile"
    (reason,) = never_fits(full, Request(1, 10, 10))
    assert reason.code == "gpu-in-mig-mode"
