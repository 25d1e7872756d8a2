"""Words that decide which GPUs a pod has: every one that a format believes is kept from tenants."""

import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from apps.clusters.admission.policy import ANNOTATIONS, GUARDS, LABELS, Policy
from apps.clusters.formats import FORMATS, Guarded, gpu_manager, gpushare, hami, kubeshare, pods
from apps.clusters.formats.asks import Unreadable
from apps.clusters.importing.plan import Snapshot, plan
from tests.clusters.admission.asking import mutate, validate
from tests.clusters.formats.pods import container_with, pod

Json = dict[str, Any]
UUID = "GPU-3a6ef4cd-0f1b-4d5e-9c0a-aaaaaaaaaaaa"
VISIBLE = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": UUID}]
V2 = {"sharedgpu/gpu_request": "0.5", "sharedgpu/gpu_limit": "1.0"}
V1 = {"kubeshare/gpu_request": "0.5", "kubeshare/gpu_limit": "1.0", "kubeshare/gpu_mem": "1048576"}
# Running pods in the words of each format, with what its scheduler wrote.
RUNNING: dict[str, list[Json]] = {
    gpu_manager.NAME: [pod(container_with(core=30, memory=4), annotations={"tencent.com/predicate-gpu-idx-0": "0"})],
    hami.NAME: [pod(container_with(gpu=1), annotations={hami.ALLOCATED: f"{UUID},NVIDIA,3000,20:;"})],
    gpushare.NAME: [
        pod(container_with(aliyun=2), annotations={gpushare.INDEX: "0"}),
        pod(container_with(aliyun=2), annotations={gpushare.INDEX: "0", gpushare.BY_POD: "2"}),
    ],
    kubeshare.NAME: [
        pod({}, annotations={"sharedgpu/gpu_uuid": UUID, "sharedgpu/gpu_mem": str(1 << 30)}, labels=V2),
        pod({"env": VISIBLE}, labels=V2),
        pod({}, annotations={**V1, "kubeshare/gpu_uuid": UUID}),
        pod({"env": VISIBLE}, annotations=V1),
    ],
}


class Recorded(dict[str, str]):
    """Words that record which of them are looked up by name."""

    def __init__(self, values: dict[str, str]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> str:
        self.read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)


def result_of(read: Any, thing: Json) -> object:
    """Return what a reader says of the pod, or that it cannot read it."""
    try:
        return read(thing)
    except Unreadable as error:
        return error.detail


def looked_up(read: Any, thing: Json) -> set[str]:
    """Return the annotations that a reader looks up by name."""
    words = Recorded(thing["metadata"].get("annotations") or {})
    result_of(read, {**thing, "metadata": {**thing["metadata"], "annotations": words}})
    return {f"annotation {key}" for key in words.read}


def one_less(thing: Json) -> Iterator[tuple[str, Json]]:
    """Yield each word of the pod, and the pod without it."""
    for kind, name in (("annotation", "annotations"), ("label", "labels")):
        for key in thing["metadata"].get(name) or {}:
            less = copy.deepcopy(thing)
            del less["metadata"][name][key]
            yield f"{kind} {key}", less
    for place, container in enumerate(thing["spec"]["containers"]):
        for entry in container.get("env") or []:
            less = copy.deepcopy(thing)
            less["spec"]["containers"][place]["env"].remove(entry)
            yield f"variable {entry['name']}", less


def decisive(format_: Any, thing: Json) -> set[str]:
    """Return the words by which the format says what a running pod holds, beyond what the pod asks."""
    by_name = looked_up(format_.holds, thing) - looked_up(format_.asks, thing)
    by_effect = {
        word
        for word, less in one_less(thing)
        if result_of(format_.holds, less) != result_of(format_.holds, thing)
        and result_of(format_.asks, less) == result_of(format_.asks, thing)
    }
    return by_name | by_effect


def is_guarded(word: str, guarded: Guarded) -> bool:
    kind, _, key = word.partition(" ")
    if kind == "variable":
        return key in guarded.environment
    return key.startswith(guarded.labels if kind == "label" else guarded.annotations)


def forgotten(format_: Any, running: list[Json]) -> list[str]:
    """Return the decisive words that the format's own list lacks."""
    words = {word for thing in running for word in decisive(format_, thing)}
    assert words, f"{format_.NAME}: holds() believes no word: give a running pod of it in RUNNING"
    return sorted(word for word in words if not is_guarded(word, format_.GUARDED))


@pytest.mark.parametrize("format_", FORMATS, ids=lambda format_: format_.NAME)
def test_every_word_that_a_format_believes_is_in_its_list(format_: Any) -> None:
    missing = forgotten(format_, RUNNING.get(format_.NAME, []))
    assert not missing, f"{format_.NAME}.GUARDED lacks {', '.join(missing)}"
    assert format_.GUARDED in GUARDS


def test_a_new_format_that_forgets_a_word_is_told_which() -> None:
    def holds(thing: Json) -> tuple[Any, ...]:
        meta, [container] = thing["metadata"], thing["spec"]["containers"]
        return meta["annotations"].get("new/gpu"), meta["labels"].get("new/where"), container["env"]

    new = SimpleNamespace(NAME="new", GUARDED=Guarded(), asks=lambda thing: (), holds=holds)
    running = pod({"env": [{"name": "NEW_GPU", "value": "1"}]}, annotations={"new/gpu": "1"}, labels={"new/where": "b"})
    assert forgotten(new, [running]) == ["annotation new/gpu", "label new/where", "variable NEW_GPU"]
    new.GUARDED = Guarded(annotations=("new/",), labels=("new/",), environment=("NEW_GPU",))
    assert forgotten(new, [running]) == []


def test_a_label_that_keeps_a_pod_out_of_the_ledger_is_guarded() -> None:
    asked = pod(container_with(core=30, memory=4), annotations={"tencent.com/predicate-gpu-idx-0": "0"})
    asked["spec"]["nodeName"] = "gpu1"
    assert plan(Snapshot(pods=[asked])).pods
    asked["metadata"]["labels"] = {kubeshare.PLACEHOLDER: "dummyPod"}
    assert not plan(Snapshot(pods=[asked])).pods
    assert kubeshare.PLACEHOLDER.startswith(LABELS)
    assert pods.SHAREPOD.startswith(LABELS)


def whole(prefix: str) -> str:
    return f"{prefix}0" if prefix.endswith("-") else prefix


def forgeries() -> dict[str, Json]:
    """Return pods of a tenant, each with one word that a scheduler writes."""
    found = {f"annotation {whole(key)}": pod({}, annotations={whole(key): UUID}) for key in ANNOTATIONS}
    found |= {f"label {whole(key)}": pod({}, labels={whole(key): "x"}) for key in LABELS}
    for prefix in kubeshare.PREFIXES:
        words = {f"{prefix}gpu_request": "0.9", f"{prefix}gpu_limit": "1.0", f"{prefix}gpu_mem": "1048576"}
        where = "labels" if prefix == kubeshare.V2_PREFIX else "annotations"
        meta: Json = {where: words}
        found[f"variable beside {prefix}"] = pod({"env": VISIBLE}, **meta)
    return found


@pytest.mark.parametrize("word", forgeries())
def test_a_tenant_may_set_none_of_them_and_a_scheduler_may(word: str) -> None:
    forged = forgeries()[word]
    assert not validate(forged)["allowed"], word
    assert validate(forged, Policy(trusted=frozenset({"a-scheduler"})), user="a-scheduler")["allowed"]
    assert validate(mutate(forged))["allowed"], "the mutating webhook leaves something of it"


def test_a_variable_beside_nothing_that_asks_is_the_tenants_own() -> None:
    plain = pod({"env": VISIBLE})
    assert validate(plain)["allowed"]
    assert mutate(plain) is plain


@pytest.mark.parametrize("prefix", kubeshare.PREFIXES)
def test_a_pod_that_is_there_cannot_begin_to_ask(prefix: str) -> None:
    """A variable is believed beside these words only, so they must not come after it."""
    before, after = pod({"env": VISIBLE}), pod({"env": VISIBLE})
    where = "labels" if prefix == kubeshare.V2_PREFIX else "annotations"
    after["metadata"][where] = {f"{prefix}gpu_request": "0.9", f"{prefix}gpu_limit": "1.0"}
    for now, then in ((after, before), (before, after)):
        assert not validate(now, old=then, operation="UPDATE")["allowed"]
        assert validate(now, old=then, operation="UPDATE", groups=["system:masters"])["allowed"]
    plain = pod({}, labels={"sharedgpu/gpu_request": "0.9"})
    changed = pod({}, labels={"sharedgpu/gpu_request": "0.1"})
    assert "what a pod asks" in validate(changed, old=plain, operation="UPDATE")["status"]["message"]
