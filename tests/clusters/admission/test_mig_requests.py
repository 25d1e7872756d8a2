"""Pods that ask for MIG instances as NVIDIA's and HAMi's documentation writes them: left, or refused in words."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.exceptions import ImproperlyConfigured

from apps.clusters.admission.policy import MIG_WORDS, Policy, require_mig_word
from tests.clusters.admission.asking import mutate, validate

Json = dict[str, Any]
HAMI = frozenset({"HAMi"})
LEAVE, REFUSE = Policy(translated=HAMI), Policy(translated=HAMI, mig="refuse")
# As in NVIDIA's "MIG Support in Kubernetes", strategy mixed.
MIXED = """
apiVersion: v1
kind: Pod
metadata: {name: mig-mixed-example}
spec:
  restartPolicy: OnFailure
  containers:
  - name: nvidia-smi
    image: nvidia/cuda:11.0-base
    command: ["nvidia-smi", "-L"]
    resources: {limits: {RESOURCE: 1}}
"""
# There, strategy single: any resource of the node is an instance, and the selector says of which profile.
SINGLE = """
apiVersion: v1
kind: Pod
metadata: {name: mig-single-example}
spec:
  containers:
  - name: nvidia-smi
    image: nvidia/cuda:11.0-base
    resources: {limits: {nvidia.com/gpu: 1}}
  nodeSelector: {nvidia.com/gpu.product: A100-SXM4-40GB-MIG-1g.5gb}
"""
SINGLE_BY_AFFINITY = """
apiVersion: v1
kind: Pod
metadata: {name: mig-single-example}
spec:
  containers:
  - name: nvidia-smi
    resources: {limits: {nvidia.com/gpu: 1}}
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions:
          - {key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.me]}
"""
# HAMi's dynamic MIG.
DYNAMIC = """
apiVersion: v1
kind: Pod
metadata:
  name: gpu-pod
  annotations: {nvidia.com/vgpu-mode: "mig"}
spec:
  containers:
  - name: ubuntu-container
    image: ubuntu:18.04
    command: ["bash", "-c", "sleep 86400"]
    resources: {limits: {nvidia.com/gpu: 2, nvidia.com/gpumem: 8000}}
"""


def manifest(text: str, resource: str = "") -> Json:
    made: Json = yaml.safe_load(text.replace("RESOURCE", resource))
    for container in made["spec"]["containers"]:
        limits = container["resources"]["limits"]
        container["resources"] = {kind: {k: str(v) for k, v in limits.items()} for kind in ("limits", "requests")}
    return made


@pytest.mark.parametrize("resource", ["nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.71gb", "nvidia.com/mig-1g.10gb.me"])
def test_they_are_left_to_the_device_plugin_and_kubectl_says_so(resource: str) -> None:
    asked = manifest(MIXED, resource)
    assert mutate(asked, LEAVE) is asked
    answer = validate(asked, LEAVE)
    assert answer["allowed"]
    [warning] = answer["warnings"]
    assert f"nvidia-smi asks {resource}: it is left to NVIDIA's device plugin" in warning


@pytest.mark.parametrize(
    ("resource", "remedy"),
    [("nvidia.com/mig-1g.10gb", "`gpucloud run --profile 1g.10gb`"), ("nvidia.com/mig-1g.10gb.me", "run it elsewhere")],
)
def test_where_nothing_serves_them_they_are_refused_with_what_to_write(resource: str, remedy: str) -> None:
    answer = validate(manifest(MIXED, resource), REFUSE)
    assert not answer["allowed"]
    assert resource in answer["status"]["message"]
    assert remedy in answer["status"]["message"]


def with_container(asked: Json, resource: str, **more: Any) -> Json:
    """Return the pod with one more container, or init container, that asks for an instance."""
    kind = "initContainers" if more.pop("init", False) else "containers"
    amounts = {"limits": {resource: "1"}, "requests": {resource: "1"}}
    asked["spec"].setdefault(kind, []).append({"name": "other", "resources": amounts, **more})
    return asked


SERVE = Policy(mig="serve")


def test_our_classes_serve_a_profile() -> None:
    asked = manifest(MIXED, "nvidia.com/mig-1g.10gb")
    assert mutate(asked, SERVE) is asked
    answer = validate(asked, SERVE)
    assert (answer["allowed"], answer.get("warnings")) == (True, None)


def test_what_they_cannot_serve_is_refused_in_words() -> None:
    profile = "nvidia.com/mig-1g.10gb"
    several = manifest(MIXED.replace("RESOURCE: 1", f"{profile}: 2"))
    named = manifest(MIXED, profile)
    named["spec"]["nodeName"] = "gpu1"
    for asked, words in (
        (manifest(MIXED, f"{profile}.me"), "are not offered; ask nvidia.com/mig-1g.10gb."),
        (several, "2 times: a program uses one MIG instance"),
        (with_container(manifest(MIXED, profile), profile), "give each a ResourceClaim"),
        (with_container(manifest(MIXED, "cpu"), profile, init=True), "ask in a container or a sidecar"),
        (named, "use a nodeSelector"),
    ):
        answer = validate(asked, SERVE)
        assert not answer["allowed"]
        assert words in answer["status"]["message"]


def test_an_amount_of_nothing_asks_for_nothing() -> None:
    asked = manifest(MIXED, "nvidia.com/mig-1g.10gb")
    for kind in ("limits", "requests"):
        asked["spec"]["containers"][0]["resources"][kind] = {"nvidia.com/mig-1g.10gb": "0"}
    assert validate(asked, REFUSE)["allowed"]


def test_an_amount_that_is_none_is_refused_in_words() -> None:
    asked = manifest(MIXED, "nvidia.com/mig-1g.10gb")
    asked["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/mig-1g.10gb": "many"}
    assert "is not a quantity" in validate(asked, LEAVE)["status"]["message"]


@pytest.mark.parametrize(("text", "profile"), [(SINGLE, "1g.5gb"), (SINGLE_BY_AFFINITY, "1g.10gb.me")])
def test_a_gpu_that_is_an_instance_never_becomes_a_whole_one(text: str, profile: str) -> None:
    asked = manifest(text)
    assert mutate(asked, LEAVE) is asked
    words = f"ask nvidia.com/mig-{profile}: 1, and leave nvidia.com/gpu.product out"
    assert words in validate(asked, LEAVE)["warnings"][0]
    refusing = Policy(translated=HAMI, refuse_unmet=True)
    assert words in validate(asked, refusing)["status"]["message"]
    # Where HAMi's words are not ours, neither are these.
    assert "warnings" not in validate(asked, Policy())


def test_a_gpu_of_another_product_is_rewritten_as_before() -> None:
    asked = manifest(SINGLE.replace("-MIG-1g.5gb", ""))
    found = mutate(asked, LEAVE)["spec"]["containers"][0]["resources"]["limits"]
    assert found == {"tencent.com/vcuda-core": "100"}


def test_hamis_dynamic_mig_is_told_to_name_a_profile() -> None:
    asked = manifest(DYNAMIC)
    assert mutate(asked, LEAVE) is asked
    assert "ask for an instance by its profile, as nvidia.com/mig-2g.20gb: 1" in validate(asked, LEAVE)["warnings"][0]


def test_only_known_words_are_settings() -> None:
    for word in MIG_WORDS:
        require_mig_word(word)
    with pytest.raises(ImproperlyConfigured, match="use one of leave, serve, refuse"):
        require_mig_word("Refuse")


def test_the_page_has_every_word() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    section = page[page.index("### MIG instances for pods") :].partition("\n### ")[0]
    assert all(f"| `{word}`" in section for word in MIG_WORDS)
