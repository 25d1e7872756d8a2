"""HAMi's format, by the examples of its own protocol document."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.clusters.formats import hami
from apps.clusters.formats.asks import Ask, Share, Unreadable
from tests.clusters.formats.pods import container_with, pod

V100 = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"


def test_memory_is_mib_of_each_gpu_and_without_cores_compute_is_free() -> None:
    assert hami.asks(pod(container_with(gpu=2, gpumem=3000))) == (Ask("c0", 2, 0, 100, memory_mib=3000),)


def test_named_cores_are_guaranteed_and_limited() -> None:
    (ask,) = hami.asks(pod(container_with(gpu=1, gpumem=3000, cores=30)))
    assert (ask.core_request, ask.core_limit) == (30, 30)


@pytest.mark.parametrize(
    "container", [container_with(gpu=1), container_with(gpu=1, percent=100), container_with(gpu=1, gpumem=0)]
)
def test_a_gpu_whose_memory_is_had_whole_is_had_whole(container: dict[str, object]) -> None:
    (ask,) = hami.asks(pod(container))
    assert (ask.core_request, ask.memory_on(24_000)) == (100, 24_000)


def test_a_percentage_is_of_the_gpu_it_runs_on_and_one_gpu_is_meant_where_none_is_counted() -> None:
    (ask,) = hami.asks(pod(container_with(percent=25)))
    assert (ask.gpu_count, ask.memory_on(24_001), ask.core_request) == (1, 6000, 0)


@pytest.mark.parametrize(
    "container", [container_with(gpu=1, percent=101), container_with(gpu=1, cores=101), container_with(gpu="1.5.2")]
)
def test_more_than_a_gpu_or_no_number_is_refused(container: dict[str, object]) -> None:
    with pytest.raises(Unreadable, match="c0"):
        hami.asks(pod(container))


def test_a_claim_has_at_least_one_percent_and_may_use_all_of_an_idle_gpu() -> None:
    (ask,) = hami.asks(pod(container_with(gpu=1, gpumem=3000)))
    fields = ask.claim_fields(24_000)
    assert (fields["core_request"], fields["core_limit"], fields["memory_mib"]) == (1, 100, 3000)


def test_the_protocols_own_example_is_two_containers_on_one_gpu() -> None:
    said = f"{V100},NVIDIA,3000,0:;{V100},NVIDIA,5000,0:;"
    held = hami.holds(pod({}, {}, annotations={hami.ALLOCATED: said}))
    assert held == (Share("c0", 0, 100, 3000, gpu_uuid=V100), Share("c1", 0, 100, 5000, gpu_uuid=V100))


def test_init_containers_come_first_and_have_given_back() -> None:
    running = pod({}, annotations={hami.ALLOCATED: f"{V100},NVIDIA,100,0:;{V100},NVIDIA,5000,40:;"})
    running["spec"]["initContainers"] = [{"name": "fetch"}]
    assert hami.holds(running) == (Share("c0", 40, 40, 5000, gpu_uuid=V100),)


@pytest.mark.parametrize(
    "said",
    [
        None,
        "GPU-1,NVIDIA,3000",
        "GPU-1,NVIDIA,much,0:;",
        ",NVIDIA,3000,0:;",
        "MLU-4,MLU,3000,0:;",
        "GPU-1[1-0],NVIDIA,3000,0:;",
        "GPU-1,NVIDIA,3000,0:;GPU-1,NVIDIA,3000,0:;",
    ],
)
def test_a_decision_that_cannot_be_taken_over_is_refused_in_words(said: str | None) -> None:
    with pytest.raises(Unreadable, match="acme/web-0"):
        hami.holds(pod({}, annotations={} if said is None else {hami.ALLOCATED: said}))


def test_its_quota_counts_limits() -> None:
    hard = {"limits.nvidia.com/gpumem": 30_000, "limits.nvidia.com/gpucores": 300, "requests.nvidia.com/gpu": 6}
    assert hami.quota(hard) == {"memory_mib": 30_000, "core_percent": 300, "vgpus": 6}


UUIDS = st.integers(0, 15).map(lambda number: f"GPU-{number:08x}")
DEVICES = st.lists(st.tuples(UUIDS, st.integers(0, 80_000), st.integers(0, 100)), max_size=3)


@given(st.lists(DEVICES, min_size=1, max_size=4), st.integers(0, 2))
def test_what_is_written_is_read_again(contents: list[list[tuple[str, int, int]]], inits: int) -> None:
    running = pod(*[{} for _ in contents])
    running["spec"]["initContainers"] = [{"name": f"init{place}"} for place in range(inits)]
    shares = tuple(
        Share(f"c{place}", cores, cores or 100, memory, gpu_uuid=uuid)
        for place, devices in enumerate(contents)
        for uuid, memory, cores in devices
    )
    running["metadata"]["annotations"] = hami.annotations_for(running, shares, node="gpu1", at_seconds=7)
    assert hami.holds(running) == shares
