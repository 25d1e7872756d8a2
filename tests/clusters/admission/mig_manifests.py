"""Manifests that ask for MIG instances, as published examples write them, in our own words; and what becomes of each.

Read in November 2026: NVIDIA's "MIG Support in Kubernetes" and "GPU Operator with MIG" (docs.nvidia.com), the pages and
demo/specs of github.com/kubernetes-sigs/dra-driver-nvidia-gpu (OpenShift's and Kueue's pages have the same template),
examples/nvidia of github.com/Project-HAMi/HAMi, docs/design/dynamic-mig.md of github.com/volcano-sh/volcano. Names of
resources are those of github.com/NVIDIA/k8s-device-plugin.
"""

from typing import Any, NamedTuple

Json = dict[str, Any]
LEFT, SERVED, REFUSED, WHOLE = "left", "served", "refused", "a whole GPU"
OURS = "deviceclass.resource.kubernetes.io/mig-1g.10gb.gpucloud.io"
THEIR_CLASS, OUR_CLASS = "mig.nvidia.com", "mig-1g.10gb.gpucloud.io"
PROFILE = "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"
CAPACITY = "device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('10Gi'))"
ONE_GPU = [{"requests": [], "matchAttribute": "gpu.nvidia.com/parentUUID"}]


class Case(NamedTuple):
    """A manifest as somebody writes it, its result under each word of ADMISSION_MIG, and words that are said of it."""

    source: str
    thing: Json
    leave: str
    serve: str
    refuse: str
    # Said where it is not served.
    words: str = ""

    def result(self, word: str) -> str:
        return {"leave": self.leave, "serve": self.serve, "refuse": self.refuse}[word]


def pod(*containers: Json, annotations: Json | None = None, **spec: Any) -> Json:
    """Return a pod whose containers have these limits; Kubernetes fills in the requests."""
    amounts = [{name: str(amount) for name, amount in limits.items()} for limits in containers]
    made = [
        {"name": f"c{place}", "resources": {"limits": limits, "requests": dict(limits)}}
        for place, limits in enumerate(amounts)
    ]
    meta = {"name": "example", "annotations": annotations or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": made, **spec}}


def template(*requests: Json, **devices: Any) -> Json:
    named = [{"name": f"r{place}", **request} for place, request in enumerate(requests)]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "example"},
        "spec": {"spec": {"devices": {"requests": named, **devices}}},
    }


def exactly(name: str, expression: str | None = None, **more: Any) -> Json:
    selectors = {"selectors": [{"cel": {"expression": expression}}]} if expression else {}
    return {"exactly": {"deviceClassName": name, **selectors, **more}}


def mig(profile: str, amount: int = 1) -> Json:
    return {f"nvidia.com/mig-{profile}": amount}


NVIDIA, OPERATOR, PLUGIN = "NVIDIA, MIG in Kubernetes", "NVIDIA, GPU Operator", "NVIDIA, device plugin"
DRA, HAMI, VOLCANO, KUBERNETES = "NVIDIA, DRA driver", "HAMi", "Volcano", "Kubernetes"
A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
GPU = {"nvidia.com/gpu": 1}
TOLERATED = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
# What each is in the table of docs/kubernetes.md.
CASES = {
    "`nvidia.com/mig-1g.10gb: 1`": Case(NVIDIA, pod(mig("1g.10gb")), LEFT, SERVED, REFUSED),
    "the same, `nodeSelector` `gpu.product` and `mig.strategy: mixed`": Case(
        OPERATOR, pod(mig("1g.10gb"), nodeSelector={**A100, "nvidia.com/mig.strategy": "mixed"}), LEFT, SERVED, REFUSED
    ),
    "the same, two in a container": Case(
        NVIDIA, pod(mig("1g.10gb", 2)), LEFT, REFUSED, REFUSED, "a program uses one MIG instance"
    ),
    "the same in each of two containers": Case(
        NVIDIA, pod(mig("1g.10gb"), mig("1g.10gb")), LEFT, REFUSED, REFUSED, "give each a ResourceClaim"
    ),
    "`nvidia.com/mig-1g.10gb.me: 1`": Case(
        NVIDIA, pod(mig("1g.10gb.me")), LEFT, REFUSED, REFUSED, "variants of a profile"
    ),
    "`nvidia.com/mig-1g.24gb.gfx: 1`": Case(
        NVIDIA, pod(mig("1g.24gb.gfx")), LEFT, REFUSED, REFUSED, "ask nvidia.com/mig-1g.24gb"
    ),
    "`nvidia.com/mig-1c.2g.20gb: 1`": Case(
        PLUGIN, pod(mig("1c.2g.20gb")), LEFT, REFUSED, REFUSED, "parts of an instance are not offered"
    ),
    "`nvidia.com/mig-1g.10gb.shared: 1`": Case(
        PLUGIN, pod(mig("1g.10gb.shared")), LEFT, REFUSED, REFUSED, "several pods would share an instance"
    ),
    "`nvidia.com/gpu.shared: 1`": Case(PLUGIN, pod({"nvidia.com/gpu.shared": 1}), LEFT, LEFT, LEFT),
    "`nvidia.com/gpu: 1`, `gpu.product: …-MIG-1g.10gb`": Case(
        NVIDIA,
        pod(GPU, nodeSelector={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}),
        *(LEFT, LEFT, LEFT),
        "ask nvidia.com/mig-1g.10gb: 1, and leave nvidia.com/gpu.product out",
    ),
    "`nvidia.com/gpu: 1`, `mig.strategy: single`": Case(
        OPERATOR,
        pod(GPU, nodeSelector={"nvidia.com/mig.strategy": "single"}),
        *(LEFT, LEFT, LEFT),
        "ask by a profile, as nvidia.com/mig-2g.20gb: 1, and leave nvidia.com/mig.strategy out",
    ),
    "`nvidia.com/gpu: 1`, `mig.config: all-1g.10gb`": Case(
        OPERATOR,
        pod(GPU, nodeSelector={"nvidia.com/mig.config": "all-1g.10gb"}),
        *(LEFT, LEFT, LEFT),
        "ask nvidia.com/mig-1g.10gb: 1, and leave nvidia.com/mig.config out",
    ),
    "`nvidia.com/gpu: 1`, `mig.config: all-disabled`": Case(
        OPERATOR, pod(GPU, nodeSelector={"nvidia.com/mig.config": "all-disabled"}), WHOLE, WHOLE, WHOLE
    ),
    "`nvidia.com/mig-3g.20gb: 1` (`mig_example`)": Case(HAMI, pod(mig("3g.20gb")), LEFT, SERVED, REFUSED),
    "`nvidia.com/vgpu-mode: mig`, `gpu: 2`, `gpumem: 8000` (`dynamic_mig_example`)": Case(
        HAMI,
        pod({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 8000}, annotations={"nvidia.com/vgpu-mode": "mig"}),
        *(LEFT, LEFT, LEFT),
        "nvidia.com/gpumem names no profile",
    ),
    "the same, `mig-profile-preference: 4g` (`dynamic_mig_profile_preference`)": Case(
        HAMI,
        pod(
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 20000},
            annotations={"nvidia.com/vgpu-mode": "mig", "nvidia.com/mig-profile-preference": "4g"},
        ),
        *(LEFT, LEFT, LEFT),
        "nvidia.com/mig-profile-preference is not followed",
    ),
    "`volcano.sh/vgpu-mode: mig`, `volcano.sh/vgpu-number: 2`": Case(
        VOLCANO,
        pod({"volcano.sh/vgpu-number": 2, "volcano.sh/vgpu-memory": 8000}, annotations={"volcano.sh/vgpu-mode": "mig"}),
        *(LEFT, LEFT, LEFT),
    ),
    "class `mig.nvidia.com`, any, or by profile or capacity": Case(
        DRA,
        template(exactly(THEIR_CLASS), exactly(THEIR_CLASS, PROFILE), exactly(THEIR_CLASS, CAPACITY)),
        *(LEFT, LEFT, LEFT),
    ),
    "the same, two from one GPU": Case(
        DRA, template(*[exactly(THEIR_CLASS, PROFILE)] * 2, constraints=ONE_GPU), LEFT, LEFT, LEFT
    ),
    "`nvidia.com/gpu: 1` of a DeviceClass of a profile (`extended-resources/mig-1g-12gb`)": Case(
        DRA, pod(GPU, tolerations=TOLERATED), WHOLE, WHOLE, WHOLE
    ),
    "class `mig-1g.10gb.gpucloud.io` in its place": Case(
        DRA, template(exactly(OUR_CLASS, count=1)), SERVED, SERVED, SERVED
    ),
    "our class, NVIDIA's selector by profile": Case(
        DRA, template(exactly(OUR_CLASS, PROFILE)), REFUSED, REFUSED, REFUSED, "its selector names gpu.nvidia.com"
    ),
    "our class, NVIDIA's constraint on `parentUUID`": Case(
        DRA,
        template(exactly(OUR_CLASS), constraints=ONE_GPU),
        *(REFUSED, REFUSED, REFUSED),
        "a constraint names gpu.nvidia.com/parentUUID",
    ),
    "our classes, two requests in a claim": Case(
        DRA, template(*[exactly(OUR_CLASS)] * 2), REFUSED, REFUSED, REFUSED, "this one has 2"
    ),
    "our classes, `firstAvailable`": Case(
        KUBERNETES,
        template({"firstAvailable": [{"name": "small", "deviceClassName": OUR_CLASS}]}),
        *(REFUSED, REFUSED, REFUSED),
        "firstAvailable has several sizes",
    ),
    "`deviceclass.resource.kubernetes.io/mig-1g.10gb.gpucloud.io: 1`": Case(
        KUBERNETES, pod({OURS: 1}), SERVED, SERVED, SERVED
    ),
    "the same, 2": Case(KUBERNETES, pod({OURS: 2}), REFUSED, REFUSED, REFUSED, "a program uses one MIG instance"),
}
