"""The watch keeps of each pod what its readers use, and they find in it what they find in the whole pod."""

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.clusters.formats import FORMATS, format_of
from apps.clusters.importing.plan import Snapshot, plan
from apps.clusters.kube.reflector import KEPT_PODS
from apps.clusters.pod_queue import recorded_facts
from apps.clusters.services import evicting
from tests.clusters.formats.pods import container_with, pod
from tests.clusters.formats.test_formats import AMOUNTS, KEYS, TEXT
from tests.clusters.importing.populated import gpu_manager_pod, gpushare_pod, hami_pod, kubeshare_pod
from tests.clusters.test_sidecars import SIDECAR, with_inits

Json = dict[str, Any]
DECODER = msgspec.json.Decoder(KEPT_PODS.type)
WORDS = {"kubectl.kubernetes.io/last-applied-configuration": "x" * 3000}


def kept(whole: Json) -> Json:
    """Return what the watch keeps of the pod."""
    assert KEPT_PODS.trim is not None
    made: Json = KEPT_PODS.trim(DECODER.decode(json.dumps(whole).encode()))
    return made


def filled(thing: Json) -> Json:
    """Return the pod with what an API server and a kubelet add to one."""
    whole = copy.deepcopy(thing)
    whole["metadata"] |= {
        "managedFields": [{"fieldsV1": {"f:x": {}}}] * 50,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    whole["metadata"]["annotations"] = {**(whole["metadata"].get("annotations") or {}), **WORDS}
    whole["spec"] |= {"volumes": [{"name": "v"}], "tolerations": [{}], "schedulerName": "default-scheduler"}
    for container in whole["spec"]["containers"]:
        container |= {"env": [{"name": "A", "value": "b" * 500}, *container.get("env", [])], "image": "cuda"}
    state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    names = [container["name"] for container in whole["spec"]["containers"]]
    whole["status"] = {
        **whole.get("status", {}),
        "conditions": [
            {"type": "Ready", "message": "m" * 300},
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ],
        "containerStatuses": [{"name": name, "state": state, "lastState": {}, "image": "i"} for name in names],
    }
    return whole


SIDECARS = with_inits(pod(container_with(core=30, memory=4)), {}, {**SIDECAR, **container_with(core=20, memory=2)})
SIDECARS["metadata"]["annotations"] = {"tencent.com/predicate-gpu-idx-0": "1", "tencent.com/predicate-gpu-idx-1": "0"}
VISIBLE = kubeshare_pod("seen")
VISIBLE["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "GPU-1"}]


@pytest.mark.parametrize(
    "thing", [gpu_manager_pod(), hami_pod(), gpushare_pod(), kubeshare_pod(), VISIBLE, SIDECARS, pod({})]
)
def test_the_readers_find_the_same(thing: Json) -> None:
    whole = filled(thing)
    small = kept(whole)
    assert plan(Snapshot(pods=[small])) == plan(Snapshot(pods=[whole]))
    assert format_of(small) is format_of(whole)
    del whole["metadata"]["annotations"][next(iter(WORDS))]
    assert recorded_facts(small) == recorded_facts(whole)
    assert evicting._was_bound(small) == evicting._was_bound(whole)
    names = [container["name"] for container in whole["spec"]["containers"]]
    assert [evicting._has_started(small, name) for name in names] == [
        evicting._has_started(whole, name) for name in names
    ]
    assert len(json.dumps(small)) < len(json.dumps(whole)) / 3


@pytest.mark.parametrize(
    "state", [{"waiting": {"reason": "ContainerCreating"}}, {"terminated": {}}, {"running": {}}, None]
)
@pytest.mark.parametrize("last", [{}, {"terminated": {"exitCode": 1}}, None])
def test_whether_a_container_has_started_is_kept(state: Json | None, last: Json | None) -> None:
    status = {"phase": "Pending", "containerStatuses": [{"name": "c0", "state": state, "lastState": last}]}
    whole = {**pod({}), "status": status}
    assert evicting._has_started(kept(whole), "c0") == evicting._has_started(whole, "c0")


@given(AMOUNTS, AMOUNTS, st.none() | st.dictionaries(KEYS, TEXT), st.none() | st.dictionaries(KEYS, TEXT))
def test_odd_pods_are_as_odd(limits: Any, requests: Any, notes: Any, labels: Any) -> None:
    odd = pod({"resources": {"limits": limits, "requests": requests}}, annotations=notes, labels=labels)
    small = kept(odd)
    assert {"spec": small["spec"], "metadata": small["metadata"]} == {"spec": odd["spec"], "metadata": odd["metadata"]}


def test_every_believed_variable_is_kept() -> None:
    names = [name for format_ in FORMATS for name in format_.GUARDED.environment]
    env = [{"name": name, "value": "1"} for name in names]
    assert kept(pod({"env": [*env, {"name": "OTHER", "value": "2"}]}))["spec"]["containers"][0]["env"] == env
