"""Words beside a pod's share: GPUs by model and UUID are selected, and nothing else is dropped without a sentence."""

from typing import Any

import pytest

from apps.clusters.formats import FORMATS, hami, kubeshare
from apps.clusters.formats.wishes import KEYS, Selection, gang_of, selection_of
from tests.clusters.admission.asking import validate
from tests.clusters.formats.pods import container_with, pod

V100, A100, T4 = ("Tesla V100-PCIE-32GB", "NVIDIA A100-SXM4-80GB", "Tesla T4")
ONE, TWO = "GPU-03f69c50-207a-2038-9b45-23cac89cb67d", "GPU-03f69c50-207a-2038-9b45-23cac89cb67e"


def accepted(selection: Selection) -> list[str]:
    return [model for model in (V100, A100, T4) if selection.accepts(model, ONE)]


@pytest.mark.parametrize(
    ("annotations", "models"),
    [
        ({}, [V100, A100, T4]),
        ({hami.USE_MODEL: "A100,V100"}, [V100, A100]),
        ({hami.USE_MODEL: " a100 "}, [A100]),
        ({hami.USE_MODEL: "NVIDIA-Tesla V100-PCIE-32GB"}, [V100]),
        ({hami.USE_MODEL: ""}, [V100, A100, T4]),
        ({hami.NOT_MODEL: "T4,A100"}, [V100]),
        ({hami.USE_MODEL: "Tesla", hami.NOT_MODEL: "T4"}, [V100]),
        ({hami.USE_UUID: f"{ONE}, {TWO}"}, [V100, A100, T4]),
        ({hami.USE_UUID: TWO}, []),
        ({hami.NOT_UUID: ONE}, []),
        ({hami.NOT_UUID: TWO}, [V100, A100, T4]),
    ],
)
def test_hamis_words_select_as_its_scheduler_does(annotations: dict[str, str], models: list[str]) -> None:
    selection = hami.wishes(pod(container_with(gpu=1), annotations=annotations)).selection
    assert accepted(selection) == models
    # And so do the annotations that the extender reads.
    assert selection_of(selection.annotations) == selection


@pytest.mark.parametrize(
    ("model", "models"), [("Tesla-V100-PCIE-32GB", [V100]), ("Tesla-V100", []), ("NVIDIA-A100-SXM4-80GB", [A100])]
)
def test_kubeshares_model_is_the_whole_name(model: str, models: list[str]) -> None:
    said = {"sharedgpu/gpu_request": "0.5", "sharedgpu/gpu_limit": "1.0", "sharedgpu/gpu_model": model}
    assert accepted(kubeshare.wishes(pod({}, labels=said)).selection) == models


HAMI_WORDS = {
    "hami.io/node-scheduler-policy": "spread",
    "hami.io/gpu-scheduler-policy": "binpack",
    "hami.io/device-scoring-weights": "slot=1",
    "nvidia.com/vgpu-mode": "mig",
    "nvidia.com/mig-profile-preference": "4g",
    "nvidia.com/numa-bind": "true",
    "nvidia.com/use-gpuindexes": "0,1",
    "nvidia.com/nouse-gpuindex": "0",
    "hami.io/vulkan": "true",
    "nvidia.com/of-next-year": "x",
}
KUBESHARE_WORDS = {
    "priority": "100",
    "group_name": "a",
    "min_available": "2",
    "of_next_year": "x",
}


@pytest.mark.parametrize("key", HAMI_WORDS)
def test_no_word_of_hami_is_dropped_silently(key: str) -> None:
    said = hami.wishes(pod(container_with(gpu=1), annotations={key: HAMI_WORDS[key]}))
    [sentence] = (*said.unmet, *said.impossible)
    assert key in sentence


@pytest.mark.parametrize("word", KUBESHARE_WORDS)
def test_no_word_of_kubeshare_is_dropped_silently(word: str) -> None:
    share = {"sharedgpu/gpu_request": "0.5", "sharedgpu/gpu_limit": "1.0"}
    said = kubeshare.wishes(pod({}, labels={**share, f"sharedgpu/{word}": KUBESHARE_WORDS[word]}))
    [sentence] = (*said.unmet, *said.impossible)
    assert f"sharedgpu/{word}" in sentence


@pytest.mark.parametrize(
    ("headcount", "threshold", "minimum"),
    [
        ("5", "0.2", None),
        ("10", "0.2", 2),
        ("5", "0.5", 3),
        ("4", "1.0", 4),
        ("100", "1", None),
        ("5", "x", None),
        ("x", "1", None),
        ("Infinity", "1", None),
        ("NaN", "1", None),
    ],
)
def test_a_group_of_kubeshare_is_a_gang_of_its_threshold(headcount: str, threshold: str, minimum: int | None) -> None:
    words = {"gpu_request": "0.5", "gpu_limit": "1.0", "group_name": "a"}
    words |= {"group_headcount": headcount, "group_threshold": threshold}
    said = kubeshare.wishes(pod({}, labels={f"sharedgpu/{word}": value for word, value in words.items()}))
    assert (said.gang.minimum if said.gang else None) == minimum
    assert gang_of(said.annotations) == said.gang
    # A group of one waits for nobody; one that cannot be read, or is too large, is told of.
    assert bool(said.unmet) == (headcount not in ("4", "5", "10") or threshold == "x")


def test_a_group_of_an_earlier_kubeshare_names_its_minimum() -> None:
    words = {"gpu_request": "1.0", "gpu_limit": "1.0", "group_name": "vgg", "min_available": "2"}
    said = kubeshare.wishes(pod({}, labels={f"sharedgpu/{word}": value for word, value in words.items()}))
    assert (said.annotations, said.unmet) == ({"gpucloud.io/gang": "vgg", "gpucloud.io/gang-minimum": "2"}, ())


@pytest.mark.parametrize("minimum", ["", "1", "0", "-2", "x", "65", "9" * 5000, "٣"])
def test_what_names_no_minimum_is_no_gang_and_is_told_of(minimum: str) -> None:
    said = {"gpucloud.io/gang": "a", "gpucloud.io/gang-minimum": minimum}
    assert gang_of(said) is None
    told = validate(pod(container_with(core=100), annotations=said)).get("warnings", [""])[0]
    assert ("is a whole number from 1 to 64" in told) == (minimum != "1")


@pytest.mark.parametrize(
    "annotations",
    [
        {"nvidia.com/vgpu-mode": "hami-core"},
        {"nvidia.com/numa-bind": "false"},
        {"hami.io/vgpu-node": "gpu1", "hami.io/bind-phase": "success"},
        {"example.org/nvidia.com": "x"},
    ],
)
def test_what_changes_nothing_is_not_spoken_of(annotations: dict[str, str]) -> None:
    said = hami.wishes(pod(container_with(gpu=1), annotations=annotations))
    assert (said.unmet, said.impossible) == ((), ())


def test_hamis_priority_is_told_of() -> None:
    asked: dict[str, Any] = container_with(gpu=1)
    asked["resources"]["limits"]["nvidia.com/priority"] = "1"
    assert "PriorityClass" in hami.wishes(pod(asked)).unmet[0]
    assert len(hami.asks(pod(asked))) == 1


def test_selections_may_be_asked_in_our_own_words_and_are_read_in_no_other() -> None:
    asked = pod(container_with(core=30, memory=4), annotations={KEYS[0]: "A100, !80GB", hami.USE_MODEL: "T4"})
    assert accepted(FORMATS[0].wishes(asked).selection) == []
    assert str(FORMATS[0].wishes(asked).selection) == "gpucloud.io/gpu-model: A100,!80GB"
