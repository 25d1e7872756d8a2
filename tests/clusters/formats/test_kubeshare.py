"""KubeShare's formats: SharePods of v1, the slides' prefix, labels of v2."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.clusters.formats import kubeshare
from apps.clusters.formats.asks import Ask, Unreadable
from tests.clusters.formats.pods import pod

GPU = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"


def sharepod(prefix: str = "kubeshare/", **words: str) -> dict[str, Any]:
    """Return a SharePod of its README, with words changed or (empty) removed; `anti_affinity` for anti-affinity."""
    said = {"gpu_request": "0.5", "gpu_limit": "1.0", "gpu_mem": "1073741824"} | words
    named = {prefix + key.replace("anti_", "anti-"): value for key, value in said.items() if value}
    return pod({}, labels=named) if prefix == "sharedgpu/" else pod({}, annotations=named)


@pytest.mark.parametrize("prefix", ["kubeshare/", "gemini/", "sharedgpu/"])
def test_a_fraction_is_percent_and_bytes_are_mib(prefix: str) -> None:
    assert kubeshare.asks(sharepod(prefix)) == (Ask("", 1, 50, 100, memory_mib=1024),)


def test_three_labels_say_with_whom_it_shares() -> None:
    words = {"sched_affinity": "red", "sched_anti_affinity": "green", "sched_exclusion": "blue"}
    (ask,) = kubeshare.asks(sharepod(**words))
    assert (ask.affinity, ask.anti_affinity, ask.exclusion) == ("red", "green", "blue")


def test_labels_of_version_2_may_leave_out_the_memory_and_ask_whole_gpus() -> None:
    (part,) = kubeshare.asks(sharepod("sharedgpu/", gpu_mem="", priority="100", gpu_model="A10"))
    assert (part.memory_on(10_000), part.priority, part.gpu_model) == (5000, 100, "A10")
    (whole,) = kubeshare.asks(sharepod("sharedgpu/", gpu_request="2.0", gpu_limit="2.0"))
    assert (whole.gpu_count, whole.core_request, whole.memory_on(10_000)) == (2, 100, 10_000)


def test_a_pod_without_words_asks_nothing() -> None:
    assert kubeshare.asks(pod({}, labels={"sharedgpu/priority": "7"})) == ()


@pytest.mark.parametrize(
    ("prefix", "words"),
    [
        ("kubeshare/", {"gpu_request": "0.9", "gpu_limit": "0.5"}),
        ("kubeshare/", {"gpu_request": ""}),
        ("kubeshare/", {"gpu_limit": "2.0"}),
        ("kubeshare/", {"gpu_limit": "NaN"}),
        ("kubeshare/", {"gpu_limit": "-1"}),
        ("kubeshare/", {"gpu_mem": ""}),
        ("kubeshare/", {"gpu_mem": "0"}),
        ("kubeshare/", {"gpu_mem": "1Gi"}),
        ("kubeshare/", {"sched_affinity": "x" * 64}),
        ("sharedgpu/", {"gpu_request": "1.5", "gpu_limit": "1.5"}),
        ("sharedgpu/", {"gpu_request": "2", "gpu_limit": "3"}),
        ("sharedgpu/", {"gpu_limit": "1e99"}),
        ("sharedgpu/", {"gpu_request": "", "gpu_mem": ""}),
        ("sharedgpu/", {"priority": "101"}),
        ("sharedgpu/", {"priority": "high"}),
    ],
)
def test_what_contradicts_itself_is_refused_in_words(prefix: str, words: dict[str, str]) -> None:
    with pytest.raises(Unreadable, match="acme/web-0"):
        kubeshare.asks(sharepod(prefix, **words))


def test_words_of_two_versions_are_refused() -> None:
    mixed = pod({}, annotations={"kubeshare/gpu_limit": "1.0"}, labels={"sharedgpu/gpu_limit": "1.0"})
    with pytest.raises(Unreadable, match="one version"):
        kubeshare.asks(mixed)


def test_the_gpu_is_the_bound_one_or_the_annotation_or_the_environment() -> None:
    running = sharepod()
    assert [share.gpu_uuid for share in kubeshare.holds(running, gpu_uuid=GPU)] == [GPU]
    version2 = sharepod("sharedgpu/", gpu_mem="")
    version2["metadata"]["annotations"] = {"sharedgpu/gpu_uuid": GPU, "sharedgpu/gpu_mem": str(5000 << 20)}
    assert [(share.gpu_uuid, share.memory_mib) for share in kubeshare.holds(version2)] == [(GPU, 5000)]
    running["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": GPU}]
    assert [share.gpu_uuid for share in kubeshare.holds(running)] == [GPU]


def test_a_pod_that_names_no_gpu_or_too_many_is_refused() -> None:
    with pytest.raises(Unreadable, match="names none"):
        kubeshare.holds(sharepod())
    with pytest.raises(Unreadable, match="asks 1"):
        kubeshare.holds(sharepod(), gpu_uuid="GPU-1,GPU-2")


LABEL = st.none() | st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True)


@st.composite
def asked(draw: st.DrawFn) -> Ask:
    request = draw(st.integers(0, 100))
    return Ask(
        "",
        1,
        request,
        draw(st.integers(max(request, 1), 100)),
        memory_mib=draw(st.integers(1, 80_000)),
        affinity=draw(LABEL),
        anti_affinity=draw(LABEL),
        exclusion=draw(LABEL),
    )


@pytest.mark.slow
@given(asked(), st.sampled_from(["kubeshare/", "gemini/"]))
def test_what_is_written_is_read_again(ask: Ask, prefix: str) -> None:
    assert kubeshare.asks(pod({}, annotations=kubeshare.annotations_for(ask, prefix=prefix))) == (ask,)
