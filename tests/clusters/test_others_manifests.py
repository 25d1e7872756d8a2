"""Manifests of HAMi, gpushare and KubeShare, unchanged, on a real control plane: rewritten, placed, bound."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import call_command

from apps.clusters.kube.client import Client, Refused
from tests.clusters.admission.serving import serve
from tests.clusters.cluster_objects import (
    CHOSEN,
    CORE,
    MEMORY,
    add_namespace,
    add_node,
    counted_core,
    give,
    placement_of,
    pod,
    remove_all,
)
from tests.clusters.control_plane import ControlPlane
from tests.clusters.formats.pods import container_with
from tests.clusters.formats.pods import pod as manifest
from tests.processes import eventually

pytestmark = [pytest.mark.control_plane, pytest.mark.serial, pytest.mark.timeout(300)]
HOOKS = "/apis/admissionregistration.k8s.io/v1"


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Client:
    """Create a cluster with one node of two GPUs."""
    found = control_plane.client()
    add_node(found, "gpu1", gpus=2, units=96)
    add_namespace(found, "others")
    return found


@pytest.fixture
def client(cluster: Client, tmp_path: Path, settings: Any) -> Iterator[Client]:
    """Connect the cluster, whose API server calls our webhooks."""
    settings.ADMISSION_TRANSLATE = ["HAMi", "gpushare", "KubeShare"]
    found = cluster
    _configurations(tmp_path, "https://127.0.0.1:1")
    with serve(tmp_path) as url:
        for configuration in _configurations(tmp_path, url):
            found.post(f"{HOOKS}/{configuration['kind'].lower()}s", configuration)
        assert eventually(lambda: _is_asked(found), seconds=60)
        yield found
        remove_all(found)
        for kind in ("mutating", "validating"):
            found.delete(f"{HOOKS}/{kind}webhookconfigurations")


def _configurations(directory: Path, url: str) -> list[dict[str, Any]]:
    out = StringIO()
    call_command("webhook_certificates", directory=directory, url=url, stdout=out, stderr=StringIO())
    return list(yaml.safe_load_all(out.getvalue()))


def _is_asked(client: Client) -> bool:
    """Return True once the API server calls us, which takes a moment."""
    thing = _named(manifest(container_with(gpu=1)), "trial")
    made = json.loads(client.post("/api/v1/namespaces/others/pods?dryRun=All", thing))
    return CORE in made["spec"]["containers"][0]["resources"]["limits"]


def _named(thing: dict[str, Any], name: str) -> dict[str, Any]:
    thing["metadata"] |= {"name": name, "namespace": "others"}
    thing["metadata"].pop("uid")
    for container in thing["spec"]["containers"]:
        container["image"] = "cuda:12"
    return thing


def test_a_manifest_of_each_runs_on_a_gpu_without_being_edited(client: Client) -> None:
    words = {"sharedgpu/gpu_request": "0.5", "sharedgpu/gpu_limit": "1.0", "sharedgpu/gpu_mem": str(4 << 30)}
    kubeshare = manifest({}, labels=words)
    kubeshare["spec"]["schedulerName"] = "kubeshare-scheduler"
    things = {
        "hami": (manifest(container_with(gpu=1, gpumem=3000, cores=30)), {CORE: "30", MEMORY: "12"}),
        "gpushare": (manifest(container_with(aliyun=2)), {CORE: "1", MEMORY: "8"}),
        "kubeshare": (kubeshare, {CORE: "50", MEMORY: "16"}),
        "whole": (manifest(container_with(gpu=1)), {CORE: "100"}),
    }
    for name, (thing, _) in things.items():
        client.post("/api/v1/namespaces/others/pods", _named(thing, name))
    places = {name: placement_of(client, "others", name, seconds=60) for name in things}
    assert {node for node, _ in places.values()} == {"gpu1"}
    # Three parts share one GPU, the whole one is alone on the other.
    assert len({places[name] for name in ("hami", "gpushare", "kubeshare")}) == 1
    assert places["whole"] != places["hami"]
    for name, (_, amounts) in things.items():
        assert pod(client, "others", name)["spec"]["containers"][0]["resources"]["limits"] == amounts


def test_a_tenants_quota_counts_what_others_words_were_rewritten_into(client: Client) -> None:
    """Kubernetes counts after our webhook: HAMi's and gpushare's pods are in the quota of `tencent.com` too."""
    give(client, "others", core=50, memory=12)
    client.post(
        "/api/v1/namespaces/others/pods", _named(manifest(container_with(gpu=1, gpumem=2048, cores=30)), "within")
    )
    assert eventually(lambda: counted_core(client, "others") == "30", seconds=30)
    for name, asks in {
        "much-core": container_with(gpu=1, gpumem=512, cores=30),
        "much-memory": container_with(aliyun=2),
    }.items():
        with pytest.raises(Refused, match=r"exceeded quota: gpu, requested: requests\.tencent\.com/vcuda"):
            client.post("/api/v1/namespaces/others/pods", _named(manifest(asks), name))
    client.delete("/api/v1/namespaces/others/resourcequotas/gpu")


def group(name: str, request: str, headcount: int) -> dict[str, Any]:
    words = {"gpu_request": request, "gpu_limit": "1.0", "group_name": name}
    words |= {"group_headcount": str(headcount), "group_threshold": "1.0"}
    thing = manifest({}, labels={f"sharedgpu/{word}": value for word, value in words.items()})
    thing["spec"]["schedulerName"] = "kubeshare-scheduler"
    return thing


def chosen(client: Client, names: list[str]) -> list[str]:
    """Return the pods for which GPUs were chosen."""
    return [name for name in names if CHOSEN in (pod(client, "others", name)["metadata"].get("annotations") or {})]


def test_a_group_of_kubeshare_is_bound_together_or_not_at_all(client: Client, settings: Any) -> None:
    settings.ADMISSION_GPU_MEMORY_MIB = 24_576
    names = ["first", "second", "third"]
    for name in names[:2]:
        client.post("/api/v1/namespaces/others/pods", _named(group("train", "0.4", 3), name))
    too_large = ["a", "b", "c"]
    for name in too_large:
        client.post("/api/v1/namespaces/others/pods", _named(group("too-large", "0.7", 3), name))

    def waits(name: str, words: str) -> bool:
        conditions = pod(client, "others", name).get("status", {}).get("conditions") or [{}]
        return words in conditions[0].get("message", "")

    assert eventually(lambda: waits("second", "gang train needs 3 pods at once, of which 1 do not"), seconds=30)
    assert eventually(lambda: waits("c", "gang too-large needs 3 pods at once, and there is room for 2"), seconds=30)
    assert chosen(client, [*names[:2], *too_large]) == []
    client.post("/api/v1/namespaces/others/pods", _named(group("train", "0.4", 3), "third"))
    assert {placement_of(client, "others", name, seconds=60)[0] for name in names} == {"gpu1"}
    assert chosen(client, too_large) == []


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")
def test_kubectl_inspect_gpushare_sees_the_rewritten_pod(
    client: Client, control_plane: ControlPlane, tmp_path: Path
) -> None:
    client.post("/api/v1/namespaces/others/pods", _named(manifest(container_with(aliyun=2)), "share"))
    _, gpu = placement_of(client, "others", "share", seconds=60)
    (tmp_path / "kubeconfig").write_text(control_plane.kubeconfig())
    said = subprocess.run(
        [sys.executable, "-c", "from gpucloud_cli.inspect_gpushare import main; main()"],
        capture_output=True, text=True, check=True, env={**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig")},
    )  # fmt: skip
    node = said.stdout.splitlines()[1].split()
    assert (node[0], node[2 + int(gpu)], node[-1]) == ("gpu1", "2/24", "2/48")
