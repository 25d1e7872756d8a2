"""GPUs are hidden from containers that ask for none, in every pod but those of trusted users."""

import base64
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import call_command

from apps.clusters.admission import hiding, reviews
from apps.clusters.admission.manifests import SEES_GPUS
from apps.clusters.admission.policy import Policy
from tests.clusters.admission.asking import apply_patch, review
from tests.clusters.formats.pods import container_with, pod
from tests.helm import OUTSIDE, named, needs_helm, rendered

HIDDEN = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
OTHER = {"name": "LANG", "value": "C"}


def hide(thing: dict[str, Any], policy: Policy | None = None, **said: Any) -> dict[str, Any]:
    """Return the object after the patch."""
    asked = reviews.parse(review(thing, **said))
    response = reviews.answer(asked, hiding.hide(asked, policy or Policy()))["response"]
    assert response["allowed"]
    return apply_patch(thing, json.loads(base64.b64decode(response["patch"]))) if "patch" in response else thing


@pytest.mark.parametrize(
    "env",
    [
        None,
        [],
        [OTHER],
        [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, OTHER],
        [HIDDEN, OTHER, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}],
        [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    ],
)
def test_a_container_that_asks_for_none_sees_none(env: list[dict[str, Any]] | None) -> None:
    asked = pod({} if env is None else {"env": env})
    asked["spec"]["initContainers"] = [{"name": "fetch"}]
    made = hide(asked)
    kept = [OTHER] if OTHER in (env or []) else []
    assert made["spec"]["containers"][0]["env"] == [*kept, HIDDEN]
    assert made["spec"]["initContainers"][0]["env"] == [HIDDEN]
    assert hide(made) is made


@pytest.mark.parametrize("asks", [container_with(core=30, memory=4), container_with(gpu=1), container_with(aliyun=2)])
def test_one_that_asks_keeps_its_own_and_its_neighbours_do_not(asks: dict[str, Any]) -> None:
    made = hide(pod(asks, {}))
    assert "env" not in made["spec"]["containers"][0]
    assert made["spec"]["containers"][1]["env"] == [HIDDEN]


def test_a_part_of_a_gpu_by_nvidias_own_plugin_is_seen() -> None:
    asked = pod({"resources": {"limits": {"nvidia.com/mig-1g.5gb": "1"}}})
    assert hide(asked) is asked


def test_a_pod_of_kubeshare_is_left_to_its_scheduler() -> None:
    asked = pod({}, labels={"sharedgpu/gpu_request": "0.5", "sharedgpu/gpu_limit": "1.0"})
    assert hide(asked) is asked
    made = hide(asked, Policy(translated=frozenset({"KubeShare"})))
    assert made["spec"]["containers"][0]["env"] == [HIDDEN]


def test_trusted_users_see_them() -> None:
    asked = pod({})
    assert hide(asked, groups=["system:masters"]) is asked


def test_a_container_for_debugging_sees_none_and_nothing_else_changes() -> None:
    before, after = pod({}), pod({})
    after["spec"]["ephemeralContainers"] = [{"name": "debugger", "image": "cuda"}]
    made = hide(after, old=before, operation="UPDATE")
    assert made["spec"]["ephemeralContainers"][0]["env"] == [HIDDEN]
    assert "env" not in made["spec"]["containers"][0]
    assert hide(after, old=after, operation="UPDATE") is after


@pytest.mark.parametrize("said", [{"kind": "Deployment"}, {"kind": "Pod", "spec": [1]}, {"kind": "Pod", "spec": None}])
def test_what_is_no_pod_is_left_to_the_api_server(said: dict[str, Any]) -> None:
    assert hide(said) is said


@pytest.mark.parametrize("option", [True, False])
def test_the_webhook_is_optional_and_stops_no_pod(tmp_path: Path, option: bool) -> None:
    out = StringIO()
    call_command(
        "webhook_certificates",
        directory=tmp_path,
        service="gpucloud/webhooks",
        hide_gpus=option,
        stdout=out,
        stderr=StringIO(),
    )
    mutating, _ = yaml.safe_load_all(out.getvalue())
    names = [webhook["name"] for webhook in mutating["webhooks"]]
    assert names == ["pods.gpucloud.io", *(["hidden-gpus.gpucloud.io"] if option else [])]
    if option:
        webhook = mutating["webhooks"][1]
        assert webhook["failurePolicy"] == "Ignore"
        assert "matchConditions" not in webhook
        assert webhook["clientConfig"]["service"]["path"] == "/admission/hide"
        keys = [one["key"] for one in webhook["namespaceSelector"]["matchExpressions"]]
        assert keys == ["kubernetes.io/metadata.name", "gpucloud.io/gpus"]


@needs_helm
def test_the_agents_namespace_is_labelled() -> None:
    labels = named(rendered(*OUTSIDE), "Namespace", "gpucloud-agents")["metadata"]["labels"]
    assert labels[SEES_GPUS] == "visible"
