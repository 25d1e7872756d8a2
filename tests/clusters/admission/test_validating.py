"""Refusals of the validating webhook, each with its remedy."""

from typing import Any

import pytest

from apps.clusters.admission.policy import Policy
from tests.clusters.admission.asking import mutate, validate
from tests.clusters.formats.pods import container_with, pod

INDEX = "tencent.com/predicate-gpu-idx-0"
WORDS = ("vcuda-core", "resize-status")


def refusal_of(response: dict[str, Any]) -> str:
    """Return the text of a refusal."""
    assert not response["allowed"]
    return str(response["status"]["message"])


@pytest.mark.parametrize(
    "container",
    [
        {},
        container_with(core=30, memory=4),
        container_with(core=100),
        container_with(core=200, memory=9),
        container_with(gpu=1),
        container_with(aliyun=2),
    ],
)
def test_a_sound_pod_passes_without_a_word(container: dict[str, Any]) -> None:
    assert validate(pod(container)) == {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True}


@pytest.mark.parametrize(
    ("container", "words"),
    [
        (container_with(core=30), "no tencent.com/vcuda-memory"),
        (container_with(memory=4), "no tencent.com/vcuda-core"),
        (container_with(core=150), "multiple of 100"),
        (container_with(gpu=1, cores=200), "percent of each GPU"),
    ],
)
def test_the_holes_of_the_original_are_closed(container: dict[str, Any], words: str) -> None:
    assert words in refusal_of(validate(pod(container)))


@pytest.mark.parametrize("limits", [{}, {"tencent.com/vcuda-core": "40", "tencent.com/vcuda-memory": "4"}])
def test_requests_must_equal_limits(limits: dict[str, str]) -> None:
    container = container_with(core=30, memory=4)
    container["resources"]["limits"] = limits
    assert "both must be the same" in refusal_of(validate(pod(container)))


def test_the_same_amount_in_other_letters_is_the_same() -> None:
    container = container_with(core=1000, memory=4)
    container["resources"]["limits"]["tencent.com/vcuda-core"] = "1k"
    assert validate(pod(container))["allowed"]


def test_an_init_container_is_given_no_gpu() -> None:
    asked = pod(container_with(core=30, memory=4))
    asked["spec"]["initContainers"] = [{"name": "fetch", **container_with(core=10, memory=1)}]
    assert "Init container fetch" in refusal_of(validate(asked))


def test_an_init_container_of_a_rewritten_format_is_given_none_either() -> None:
    asked = pod(container_with(core=30, memory=4))
    asked["spec"]["initContainers"] = [{"name": "fetch", **container_with(gpumem=1000)}]
    policy = Policy(translated=frozenset({"HAMi"}))
    assert "Init container fetch asks nvidia.com/gpumem" in refusal_of(validate(asked, policy))
    assert validate(asked)["allowed"]


@pytest.mark.parametrize("place", ["containers", "initContainers"])
def test_a_device_class_is_not_asked_as_a_resource(place: str) -> None:
    asks: dict[str, Any] = {
        "name": "main",
        "resources": {"limits": {"deviceclass.resource.kubernetes.io/vgpu.gpucloud.io": "1"}},
    }
    asking = pod({})
    asking["spec"][place] = [asks]
    assert "use a ResourceClaim" in refusal_of(validate(asking))
    asks["resources"]["limits"] = {"deviceclass.resource.kubernetes.io/others.example.org": "1"}
    assert validate(asking)["allowed"]


def test_a_pod_that_names_its_node_would_pass_by_every_scheduler() -> None:
    asked = pod(container_with(core=30, memory=4))
    asked["spec"]["nodeName"] = "gpu1"
    assert "names node gpu1" in refusal_of(validate(asked))
    plain = pod({})
    plain["spec"]["nodeName"] = "gpu1"
    assert validate(plain)["allowed"]


def test_nobody_but_a_scheduler_says_which_gpu_a_pod_has() -> None:
    forged = pod(container_with(core=30, memory=4), annotations={INDEX: "3"})
    assert INDEX in refusal_of(validate(forged))
    assert validate(forged, groups=["system:serviceaccounts:gpucloud"])["allowed"]
    assert validate(forged, Policy(trusted=frozenset({"gpu-admission"})), user="gpu-admission")["allowed"]


def test_a_template_that_a_tenant_wrote_is_a_tenants_word_though_a_controller_makes_the_pod() -> None:
    forged = pod(container_with(core=30, memory=4), annotations={INDEX: "3"})
    controller = "system:serviceaccount:kube-system:replicaset-controller"
    groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"]
    assert INDEX in refusal_of(validate(forged, user=controller, groups=groups))
    assert mutate(forged, user=controller, groups=groups)["metadata"]["annotations"] == {}


def test_nobody_but_a_scheduler_moves_a_pod_to_another_gpu_later() -> None:
    before, after = (pod(container_with(core=30, memory=4), annotations={INDEX: index}) for index in "01")
    assert "leave its annotations" in refusal_of(validate(after, old=before, operation="UPDATE"))
    assert validate(after, old=after, operation="UPDATE")["allowed"]
    assert validate(after, old=before, operation="UPDATE", groups=["system:masters"])["allowed"]


def test_whose_pod_it_is_asks_for_another_share_and_writes_no_answer() -> None:
    before = pod(container_with(core=30, memory=4))
    asks, answers = (
        pod(container_with(core=30, memory=4), annotations={f"gpucloud.io/{word}": "40"}) for word in WORDS
    )
    assert validate(asks, old=before, operation="UPDATE")["allowed"]
    assert "leave its annotations" in refusal_of(validate(answers, old=before, operation="UPDATE"))


def test_a_ceiling_is_moved_within_what_it_may_be() -> None:
    pods = [
        pod(container_with(core=30, memory=4), annotations={"tencent.com/vcuda-core-limit": limit})
        for limit in ("40", "20")
    ]
    assert "vcuda-core-limit is 20" in refusal_of(validate(pods[1], old=pods[0], operation="UPDATE"))
    assert validate(pods[0], old=pods[1], operation="UPDATE")["allowed"]
    # A value that was wrong before it was watched does not prevent other changes of the pod.
    assert validate(pods[1], old=pods[1], operation="UPDATE")["allowed"]


def test_a_pod_for_another_scheduler_is_told_of() -> None:
    asked = pod(container_with(core=30, memory=4))
    assert validate(asked, Policy(scheduler_name="gpucloud"))["warnings"][0].startswith("schedulerName")


def test_a_quota_of_limits_counts_nothing_and_says_so() -> None:
    hard = {"requests.tencent.com/vcuda-core": "100", "limits.tencent.com/vcuda-core": "100", "pods": "4"}
    response = validate({"kind": "ResourceQuota", "metadata": {"name": "gpu"}, "spec": {"hard": hard}})
    assert response["allowed"]
    assert response["warnings"] == [
        "limits.tencent.com/vcuda-core is never counted: Kubernetes enforces requests.tencent.com/vcuda-core only."
    ]


def sharepod(**words: str) -> dict[str, Any]:
    said = {f"kubeshare/{word}": value for word, value in words.items()}
    return {**pod({}, annotations=said), "kind": "SharePod"}


def test_a_sharepod_is_judged_by_its_words() -> None:
    assert validate(sharepod(gpu_request="0.5", gpu_limit="1.0", gpu_mem="1048576"))["allowed"]
    assert "more than" in refusal_of(validate(sharepod(gpu_request="0.9", gpu_limit="0.5", gpu_mem="1048576")))
    assert "asks for no share" in validate(sharepod())["warnings"][0]
    empty = sharepod()
    empty["spec"] = {}
    assert "no containers" in refusal_of(validate(empty))


@pytest.mark.parametrize("said", [{"kind": "Deployment"}, {"kind": "Pod", "spec": [1]}, {"kind": "Pod", "metadata": 7}])
def test_what_is_not_ours_or_no_pod_is_left_to_the_api_server(said: dict[str, Any]) -> None:
    assert validate(said)["allowed"]
