"""Annotations that decide which GPUs a pod has: every one that a format reads is kept from tenants."""

from collections.abc import Sequence
from typing import Any

import pytest

from apps.clusters.admission.policy import DECISIONS, Policy
from apps.clusters.formats import FORMATS, Format, gpu_manager, gpushare, hami, kubeshare
from tests.clusters.admission.asking import validate
from tests.clusters.formats.pods import container_with, pod

UUID = "GPU-3a6ef4cd-0f1b-4d5e-9c0a-aaaaaaaaaaaa"
# A running pod in the words of each format, with what its scheduler wrote.
RUNNING: dict[str, dict[str, Any]] = {
    gpu_manager.NAME: pod(container_with(core=30, memory=4), annotations={"tencent.com/predicate-gpu-idx-0": "0"}),
    hami.NAME: pod(container_with(gpu=1), annotations={hami.ALLOCATED: f"{UUID},NVIDIA,3000,20:;"}),
    gpushare.NAME: pod(container_with(aliyun=2), annotations={gpushare.INDEX: "0"}),
    kubeshare.NAME: pod(
        {},
        annotations={"sharedgpu/gpu_uuid": UUID, "sharedgpu/gpu_mem": str(1 << 30)},
        labels={"sharedgpu/gpu_request": "0.5", "sharedgpu/gpu_limit": "1.0"},
    ),
}


class Recorded(dict[str, str]):
    """Annotations that record which of them are looked up."""

    def __init__(self, values: dict[str, str]) -> None:
        super().__init__(values)
        self.keys_read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.keys_read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> str:
        self.keys_read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.keys_read.add(str(key))
        return super().__contains__(key)


def keys_read(format_: Format, which: str) -> set[str]:
    """Return the annotations that `asks` or `holds` of the format looks up by name."""
    running = RUNNING[format_.NAME]
    annotations = Recorded(running["metadata"]["annotations"])
    getattr(format_, which)({**running, "metadata": {**running["metadata"], "annotations": annotations}})
    return annotations.keys_read


@pytest.mark.parametrize("format_", FORMATS, ids=lambda format_: format_.NAME)
def test_the_webhooks_keep_every_annotation_from_tenants_that_decides(format_: Format) -> None:
    decisive = keys_read(format_, "holds") - keys_read(format_, "asks")
    assert decisive, f"{format_.NAME}: holds() reads no annotation: give a running pod of it in RUNNING"
    forgotten = sorted(key for key in decisive if not key.startswith(tuple(format_.DECISIONS)))
    assert not forgotten, f"{format_.NAME}.DECISIONS lacks {', '.join(forgotten)}"
    assert set(format_.DECISIONS) <= set(DECISIONS)


def keys_of(prefixes: Sequence[str]) -> list[str]:
    return [f"{prefix}0" if prefix.endswith("-") else prefix for prefix in prefixes]


@pytest.mark.parametrize("key", keys_of(DECISIONS))
def test_a_tenant_may_set_none_of_them_and_a_scheduler_may(key: str) -> None:
    forged = pod({}, annotations={key: UUID})
    assert not validate(forged)["allowed"], key
    assert validate(forged, Policy(trusted=frozenset({"a-scheduler"})), user="a-scheduler")["allowed"]
