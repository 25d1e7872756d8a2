"""gpu-manager's format: pods of its README, its annotations, and the input that it accepted by mistake."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.clusters.formats import gpu_manager
from apps.clusters.formats.asks import Ask, Share, Unreadable
from tests.clusters.formats.pods import container_with, pod


def test_a_share_of_one_gpu_is_percent_and_units_of_256_mib() -> None:
    asked = gpu_manager.asks(
        pod(container_with(core=50, memory=30), annotations={"tencent.com/vcuda-core-limit": "80"})
    )
    assert asked == (Ask("c0", 1, 50, 80, memory_mib=7680),)


def test_whole_gpus_have_all_their_memory_whatever_is_named() -> None:
    (ask,) = gpu_manager.asks(pod(container_with(core=200, memory=60)))
    assert (ask.gpu_count, ask.core_request, ask.memory_on(22_528)) == (2, 100, 22_528)


def test_containers_that_ask_nothing_are_passed_over() -> None:
    asked = gpu_manager.asks(pod({}, container_with(core=10, memory=4), {}))
    assert [ask.container for ask in asked] == ["c1"]


@pytest.mark.parametrize(
    ("container", "words"),
    [
        (container_with(core=30), "no tencent.com/vcuda-memory"),
        (container_with(memory=30), "no tencent.com/vcuda-core"),
        (container_with(core=150, memory=30), "multiple of 100"),
        (container_with(core="many", memory=30), "is not a quantity"),
        (container_with(core="-5", memory=30), "out of range"),
        (container_with(core="1E", memory=30), "out of range"),
    ],
)
def test_what_gpu_admission_let_through_is_refused_in_words(container: dict[str, object], words: str) -> None:
    with pytest.raises(Unreadable, match=words):
        gpu_manager.asks(pod(container))


@pytest.mark.parametrize("limit", ["20", "101", "half", ""])
def test_a_ceiling_below_the_request_or_above_a_gpu_is_refused(limit: str) -> None:
    with pytest.raises(Unreadable, match="vcuda-core-limit"):
        gpu_manager.asks(pod(container_with(core=30, memory=4), annotations={"tencent.com/vcuda-core-limit": limit}))


def test_the_annotation_of_each_container_says_its_gpus_by_place_in_the_spec() -> None:
    running = pod(
        {},
        container_with(core=30, memory=4),
        container_with(core=200),
        annotations={"tencent.com/predicate-gpu-idx-1": "3", "tencent.com/predicate-gpu-idx-2": "0,2"},
    )
    held = [
        (share.container, share.gpu_index, share.core_request, share.memory_mib) for share in gpu_manager.holds(running)
    ]
    assert held == [("c1", 3, 30, 1024), ("c2", 0, 100, None), ("c2", 2, 100, None)]


@pytest.mark.parametrize("said", [None, "", "x", "0,1", "1,1", "-1", "0;1", "٣"])
def test_an_annotation_that_does_not_name_one_gpu_is_refused(said: str | None) -> None:
    annotations = {} if said is None else {"tencent.com/predicate-gpu-idx-0": said}
    with pytest.raises(Unreadable, match="predicate-gpu-idx-0"):
        gpu_manager.holds(pod(container_with(core=30, memory=4), annotations=annotations))


def test_of_a_quota_only_requests_count() -> None:
    hard = {
        "requests.tencent.com/vcuda-core": 100,
        "requests.tencent.com/vcuda-memory": 59,
        "limits.tencent.com/vcuda-core": 900,
        "pods": 4,
    }
    assert gpu_manager.quota(hard) == {"core_percent": 100, "memory_mib": 59 * 256}


ONE = st.tuples(st.integers(1, 99), st.integers(1, 400), st.lists(st.integers(0, 15), min_size=1, max_size=1))
WHOLE = st.lists(st.integers(0, 15), min_size=1, max_size=8, unique=True).map(lambda at: (100 * len(at), 0, at))


@given(st.lists(st.none() | ONE | WHOLE, max_size=4))
def test_what_is_written_is_read_again(contents: list[tuple[int, int, list[int]] | None]) -> None:
    asked = pod(*[{} if item is None else container_with(core=item[0], memory=item[1]) for item in contents])
    shares = [
        Share(f"c{place}", min(item[0], 100), min(item[0], 100), item[1] * 256 or None, gpu_index=index)
        for place, item in enumerate(contents)
        if item is not None
        for index in item[2]
    ]
    asked["metadata"]["annotations"] = gpu_manager.annotations_for(asked, shares, node="gpu1", at_ns=7)
    assert list(gpu_manager.holds(asked)) == shares
