"""`kubectl inspect gpushare` shows pods that the webhook has rewritten beside gpushare's own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from apps.clusters.admission.policy import Policy
from tests.clusters.admission.asking import mutate
from tests.clusters.formats.pods import container_with, pod

Json = dict[str, Any]


def node(name: str, **allocatable: int) -> Json:
    names = {"core": "tencent.com/vcuda-core", "memory": "tencent.com/vcuda-memory"}
    names |= {"mem": "aliyun.com/gpu-mem", "count": "aliyun.com/gpu-count"}
    return {
        "metadata": {"name": name},
        "status": {
            "addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": "10.0.0.7"}],
            "allocatable": {names[word]: str(value) for word, value in allocatable.items()},
        },
    }


def on(thing: Json, where: str, name: str, phase: str = "Running", **annotations: str) -> Json:
    thing["metadata"] |= {"name": name, "annotations": {**thing["metadata"].get("annotations", {}), **annotations}}
    thing["spec"]["nodeName"] = where
    return {**thing, "status": {"phase": phase}}


def inspect(directory: Path, nodes: list[Json], pods: list[Json], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program with a kubectl that has this cluster."""
    answers = {"nodes": {"items": nodes}, "pods": {"items": pods}, "node": nodes[0] if nodes else {}}
    for name, answer in answers.items():
        (directory / f"{name}.json").write_text(json.dumps(answer))
    kubectl = directory / "kubectl"
    kubectl.write_text(f'#!/bin/sh\n[ "$1 $2 $3" = "get -o json" ] && cat "{directory}/$4.json"\n')
    kubectl.chmod(0o755)
    return subprocess.run(
        [sys.executable, "-c", "from gpucloud_cli.inspect_gpushare import main; main()", *arguments],
        capture_output=True, text=True, check=False, env={**os.environ, "PATH": f"{directory}:{os.environ['PATH']}"},
    )  # fmt: skip


def rewritten() -> Json:
    """Return a pod of gpushare as the webhook makes it."""
    return mutate(pod(container_with(aliyun=2)), Policy(translated=frozenset({"gpushare"})))


INDEX = {"tencent.com/predicate-gpu-idx-0": "1"}


def test_a_rewritten_pod_is_on_its_gpu_beside_one_of_gpushares(tmp_path: Path) -> None:
    nodes = [node("gpu1", core=200, memory=96), node("old", mem=30, count=2), node("plain")]
    pods = [
        on(rewritten(), "gpu1", "mine", **INDEX),
        on(pod(container_with(core=100)), "gpu1", "whole", **{"tencent.com/predicate-gpu-idx-0": "0"}),
        on(pod(container_with(aliyun=3)), "old", "theirs", ALIYUN_COM_GPU_MEM_IDX="1"),
        on(pod(container_with(aliyun=3)), "old", "ended", phase="Succeeded", ALIYUN_COM_GPU_MEM_IDX="1"),
        on(pod({}), "gpu1", "plain"),
    ]
    said = inspect(tmp_path, nodes, pods)
    assert said.returncode == 0, said.stderr
    lines = [line.split() for line in said.stdout.splitlines()]
    assert lines[0] == ["NAME", "IPADDRESS", "GPU0(Allocated/Total)", "GPU1(Allocated/Total)", "GPU", "Memory(GiB)"]
    assert lines[1:3] == [
        ["gpu1", "10.0.0.7", "12/12", "2/12", "14/24"],
        ["old", "10.0.0.7", "0/15", "3/15", "3/30"],
    ]
    assert lines[-1] == ["17/54", "(31%)"]


def test_details_name_the_pods(tmp_path: Path) -> None:
    pods = [on(rewritten(), "gpu1", "mine", **INDEX)]
    said = inspect(tmp_path, [node("gpu1", core=200, memory=96)], pods, "gpu1", "-d")
    assert ["mine", "acme", "0", "2"] in [line.split() for line in said.stdout.splitlines()]


def test_the_unit_is_that_of_gpushares_nodes(tmp_path: Path) -> None:
    nodes = [node("gpu1", core=100, memory=64), node("old", mem=30_000, count=2)]
    pods = [
        on(pod(container_with(core=30, memory=8)), "gpu1", "mine", **{"tencent.com/predicate-gpu-idx-0": "0"}),
        on(pod(container_with(aliyun=2048)), "old", "waits"),
    ]
    lines = [line.split() for line in inspect(tmp_path, nodes, pods).stdout.splitlines()]
    assert lines[0][-3:] == ["PENDING(Allocated)", "GPU", "Memory(MiB)"]
    assert lines[1] == ["gpu1", "10.0.0.7", "2048/16384", "0/0", "0", "2048/16384"]
    assert lines[2] == ["old", "10.0.0.7", "0/15000", "0/15000", "2048", "2048/30000"]


def test_a_kubectl_that_refuses_is_told_of(tmp_path: Path) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\necho 'no rights' >&2; exit 1\n")
    kubectl.chmod(0o755)
    said = subprocess.run(
        [sys.executable, "-c", "from gpucloud_cli.inspect_gpushare import main; main()"],
        capture_output=True, text=True, check=False, env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert (said.returncode, said.stderr) == (1, "Error: no rights\n")


@pytest.mark.parametrize("index", ["", "x", "-1", "0,x", "9" * 5000])
def test_an_annotation_that_names_no_gpu_is_pending(tmp_path: Path, index: str) -> None:
    pods = [on(pod(container_with(core=30, memory=8)), "gpu1", "mine", **{"tencent.com/predicate-gpu-idx-0": index})]
    said = inspect(tmp_path, [node("gpu1", core=100, memory=64)], pods)
    assert "PENDING" in said.stdout
