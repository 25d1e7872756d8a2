"""The core's decision, compared with an oracle that tries everything."""

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from apps.scheduling.core.placement import never_fits, place
from apps.scheduling.core.values import GpuState, Placed, Refused, Request

MODELS = ("A10", "H100")


def gpu(node: str = "a", index: int = 0, *, core: int = 100, memory: int = 24, **facts: object) -> GpuState:
    whole = GpuState(f"{node}{index}", node, index, "A10", 24, core, memory)
    return replace(whole, **facts)  # type: ignore[arg-type]


@st.composite
def gpus(draw: st.DrawFn, number: int) -> GpuState:
    memory = draw(st.integers(0, 6))
    return GpuState(
        uuid=f"gpu-{number}",
        node=draw(st.sampled_from("abc")),
        # Not unique: a replaced device has the index of the old one.
        index=draw(st.integers(0, 3)),
        model=draw(st.sampled_from(MODELS)),
        memory_mib=6,
        core_free=draw(st.integers(0, 10)) * 10,
        memory_free_mib=memory,
        schedulable=draw(st.booleans()) or draw(st.booleans()),
    )


@st.composite
def fleets(draw: st.DrawFn) -> list[GpuState]:
    return [draw(gpus(number)) for number in range(draw(st.integers(0, 7)))]


requests = st.builds(
    Request,
    gpu_count=st.integers(1, 3),
    core_request=st.integers(1, 10).map(lambda tenth: tenth * 10),
    memory_mib=st.integers(1, 7),
    gpu_model=st.none() | st.sampled_from(MODELS),
)


def carries(one: GpuState, request: Request) -> bool:
    return (
        one.schedulable
        and request.gpu_model in (None, one.model)
        and one.core_free >= request.core_request
        and one.memory_free_mib >= request.memory_mib
    )


def every_way(fleet: list[GpuState], request: Request) -> list[tuple[GpuState, ...]]:
    """Return all sets of GPUs of one node that can carry the request."""
    sets = itertools.combinations(fleet, request.gpu_count)
    return [ways for ways in sets if len({one.node for one in ways}) == 1 and all(carries(o, request) for o in ways)]


@given(fleets(), requests)
def test_it_places_exactly_what_fits_somewhere(fleet: list[GpuState], request: Request) -> None:
    ways = [{one.uuid for one in way} for way in every_way(fleet, request)]
    answer = place(fleet, request)
    if isinstance(answer, Placed):
        assert set(answer.gpus) in ways
        assert len(answer.gpus) == request.gpu_count
    else:
        assert not ways


@given(fleets(), requests)
def test_the_gpus_chosen_are_the_fullest_that_carry_it(fleet: list[GpuState], request: Request) -> None:
    answer = place(fleet, request)
    if isinstance(answer, Placed):
        chosen = [one for one in fleet if one.uuid in answer.gpus]

        def leftover(way: tuple[GpuState, ...]) -> tuple[int, int]:
            return sum(one.core_free for one in way), sum(one.memory_free_mib for one in way)

        assert leftover(tuple(chosen)) == min(leftover(way) for way in every_way(fleet, request))


@given(fleets(), requests, st.randoms(use_true_random=False))
def test_the_order_of_the_fleet_changes_nothing(fleet: list[GpuState], request: Request, random: object) -> None:
    shuffled = list(fleet)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert place(shuffled, request) == place(fleet, request)


@given(fleets(), requests)
def test_a_refusal_counts_every_gpu_exactly_once(fleet: list[GpuState], request: Request) -> None:
    answer = place(fleet, request)
    if isinstance(answer, Refused):
        assert sum(reason.gpus for reason in answer.reasons) == len(fleet)
        assert all(
            str(reason.gpus) in reason.detail or reason.gpus == 0 or reason.code == "gpus-on-one-node"
            for reason in answer.reasons
        )


@given(fleets(), requests)
def test_what_never_fits_does_not_fit_an_empty_fleet(fleet: list[GpuState], request: Request) -> None:
    empty = [replace(one, schedulable=True, core_free=100, memory_free_mib=one.memory_mib) for one in fleet]
    assert bool(never_fits(fleet, request)) == (not every_way(empty, request))


@given(fleets(), requests)
def test_what_fits_now_is_never_called_impossible(fleet: list[GpuState], request: Request) -> None:
    if isinstance(place(fleet, request), Placed):
        assert never_fits(fleet, request) == ()


def test_a_small_claim_goes_where_it_leaves_the_smallest_hole() -> None:
    fleet = [gpu(index=0), gpu(index=1, core=50), gpu(index=2, core=30)]
    assert place(fleet, Request(1, 30, 1)) == Placed(("a2",))


def test_equal_core_is_decided_by_memory() -> None:
    fleet = [gpu(index=0, memory=20), gpu(index=1, memory=10)]
    assert place(fleet, Request(1, 30, 8)) == Placed(("a1",))


def test_ties_fall_to_the_nodes_name_and_the_index() -> None:
    fleet = [gpu("b", 0), gpu("a", 1), gpu("a", 0)]
    assert place(fleet, Request(1, 10, 1)) == Placed(("a0",))


def test_several_gpus_are_taken_from_one_node() -> None:
    fleet = [gpu("a", 0, core=50), gpu("b", 0), gpu("b", 1)]
    assert place(fleet, Request(2, 50, 1)) == Placed(("b0", "b1"))


def test_gpus_of_two_nodes_do_not_make_a_pair() -> None:
    answer = place([gpu("a", 0), gpu("b", 0)], Request(2, 50, 1))
    assert isinstance(answer, Refused)
    assert [(reason.code, reason.gpus) for reason in answer.reasons] == [("gpus-on-one-node", 2)]


def test_each_filter_says_how_many_gpus_it_removed() -> None:
    fleet = [
        gpu(index=0, schedulable=False),
        gpu(index=1, model="H100"),
        gpu(index=2, memory=1),
        gpu(index=3, core=10),
    ]
    answer = place(fleet, Request(1, 30, 8, "A10"))
    assert isinstance(answer, Refused)
    assert [(reason.code, reason.gpus) for reason in answer.reasons] == [
        ("node-unavailable", 1),
        ("gpu-model", 1),
        ("gpu-memory", 1),
        ("gpu-core", 1),
    ]


def test_a_refusal_says_what_ails_the_gpus_that_are_sick() -> None:
    def told(*ailments: str) -> list[tuple[str, int, str]]:
        fleet = [gpu(index=0, schedulable=False)]
        fleet += [gpu(index=1 + at, schedulable=False, unhealthy=words) for at, words in enumerate(ailments)]
        answer = place(fleet, Request(1, 30, 8))
        assert isinstance(answer, Refused)
        return [(reason.code, reason.gpus, reason.detail) for reason in answer.reasons]

    gone = ("node-unavailable", 1, "1 GPU unavailable (node cordoned or NotReady)")
    assert told("XID 79") == [("gpu-unhealthy", 1, "1 GPU is unhealthy (XID 79)"), gone]
    words = "3 GPUs are unhealthy (2 × XID 79, 1 × RemapPending)"
    assert told("XID 79", "RemapPending", "XID 79") == [("gpu-unhealthy", 3, words), gone]
    cordoned = ("gpu-cordoned", 2, "2 GPUs are cordoned")
    assert told("cordoned", "cordoned") == [cordoned, gone]
    assert told("cordoned", "XID 79", "cordoned") == [
        ("gpu-unhealthy", 1, "1 GPU is unhealthy (XID 79)"),
        cordoned,
        gone,
    ]


def test_a_pool_without_gpus_says_so() -> None:
    answer = place([], Request(1, 30, 8))
    assert isinstance(answer, Refused)
    assert [reason.code for reason in answer.reasons] == ["no-gpus"]
