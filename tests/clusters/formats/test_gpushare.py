"""gpushare's format: one GPU for all containers of a pod, its memory in GiB or MiB, no compute."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.clusters.formats import gpushare
from apps.clusters.formats.asks import Ask, Share, Unreadable
from tests.clusters.formats.pods import container_with, pod


def test_containers_share_one_gpu_and_their_memory_adds_up() -> None:
    asked = pod(container_with(aliyun=2), {}, container_with(aliyun=3))
    assert gpushare.asks(asked) == (Ask("", 1, 0, 100, memory_mib=5 * 1024),)
    assert gpushare.asks(asked, unit_mib=1)[0].memory_mib == 5


def test_a_pod_that_names_none_asks_nothing() -> None:
    assert gpushare.asks(pod({}, container_with(gpu=1))) == ()


@pytest.mark.parametrize("said", [None, "-1", "two", ""])
def test_a_pod_whose_gpu_is_unknown_is_refused(said: str | None) -> None:
    annotations = {} if said is None else {gpushare.INDEX: said}
    with pytest.raises(Unreadable, match=gpushare.INDEX):
        gpushare.holds(pod(container_with(aliyun=2), annotations=annotations))


def test_a_pod_on_a_gpu_without_memory_is_refused() -> None:
    with pytest.raises(Unreadable, match="asks no aliyun"):
        gpushare.holds(pod({}, annotations={gpushare.INDEX: "0"}))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=4).filter(any), st.integers(0, 15), st.sampled_from([1, 1024]))
def test_what_is_written_is_read_again(amounts: list[int], index: int, unit_mib: int) -> None:
    running = pod(*[container_with(aliyun=amount) for amount in amounts])
    shares = (Share("", 0, 100, sum(amounts) * unit_mib, gpu_index=index),)
    running["metadata"]["annotations"] = gpushare.annotations_for(
        running, shares, at_ns=7, gpu_memory_mib=24_576, unit_mib=unit_mib
    )
    assert gpushare.holds(running, unit_mib=unit_mib) == shares
    assert running["metadata"]["annotations"][gpushare.BY_DEVICE] == str(24_576 // unit_mib)
