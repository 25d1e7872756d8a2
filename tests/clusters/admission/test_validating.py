"""What the validating webhook refuses, each time with what to do."""

from typing import Any

import pytest

from apps.clusters.admission.policy import Policy
from tests.clusters.admission.asking import filled, judged
from tests.clusters.formats.pods import asking, pod

INDEX = "tencent.com/predicate-gpu-idx-0"
WORDS = ("vcuda-core", "resize-status")


def refused(response: dict[str, Any]) -> str:
    """The words of a refusal."""
    assert not response["allowed"]
    return str(response["status"]["message"])


@pytest.mark.parametrize(
    "container",
    [{}, asking(core=30, memory=4), asking(core=100), asking(core=200, memory=9), asking(gpu=1), asking(aliyun=2)],
)
def test_a_sound_pod_passes_without_a_word(container: dict[str, Any]) -> None:
    assert judged(pod(container)) == {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True}


@pytest.mark.parametrize(
    ("container", "words"),
    [
        (asking(core=30), "no tencent.com/vcuda-memory"),
        (asking(memory=4), "no tencent.com/vcuda-core"),
        (asking(core=150), "multiple of 100"),
        (asking(gpu=1, cores=200), "percent of each GPU"),
    ],
)
def test_the_holes_of_the_original_are_closed(container: dict[str, Any], words: str) -> None:
    assert words in refused(judged(pod(container)))


@pytest.mark.parametrize("limits", [{}, {"tencent.com/vcuda-core": "40", "tencent.com/vcuda-memory": "4"}])
def test_requests_must_equal_limits(limits: dict[str, str]) -> None:
    container = asking(core=30, memory=4)
    container["resources"]["limits"] = limits
    assert "both must be the same" in refused(judged(pod(container)))


def test_the_same_amount_in_other_letters_is_the_same() -> None:
    container = asking(core=1000, memory=4)
    container["resources"]["limits"]["tencent.com/vcuda-core"] = "1k"
    assert judged(pod(container))["allowed"]


def test_an_init_container_is_given_no_gpu() -> None:
    asked = pod(asking(core=30, memory=4))
    asked["spec"]["initContainers"] = [{"name": "fetch", **asking(core=10, memory=1)}]
    assert "Init container fetch" in refused(judged(asked))


def test_a_pod_that_names_its_node_would_pass_by_every_scheduler() -> None:
    asked = pod(asking(core=30, memory=4))
    asked["spec"]["nodeName"] = "gpu1"
    assert "names node gpu1" in refused(judged(asked))
    plain = pod({})
    plain["spec"]["nodeName"] = "gpu1"
    assert judged(plain)["allowed"]


def test_nobody_but_a_scheduler_says_which_gpu_a_pod_has() -> None:
    forged = pod(asking(core=30, memory=4), annotations={INDEX: "3"})
    assert INDEX in refused(judged(forged))
    assert judged(forged, groups=["system:serviceaccounts:gpucloud"])["allowed"]
    assert judged(forged, Policy(trusted=frozenset({"gpu-admission"})), user="gpu-admission")["allowed"]


def test_a_template_that_a_tenant_wrote_is_a_tenants_word_though_a_controller_makes_the_pod() -> None:
    forged = pod(asking(core=30, memory=4), annotations={INDEX: "3"})
    controller = "system:serviceaccount:kube-system:replicaset-controller"
    groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"]
    assert INDEX in refused(judged(forged, user=controller, groups=groups))
    assert filled(forged, user=controller, groups=groups)["metadata"]["annotations"] == {}


def test_nobody_but_a_scheduler_moves_a_pod_to_another_gpu_later() -> None:
    before, after = (pod(asking(core=30, memory=4), annotations={INDEX: index}) for index in "01")
    assert "leave its annotations" in refused(judged(after, old=before, operation="UPDATE"))
    assert judged(after, old=after, operation="UPDATE")["allowed"]
    assert judged(after, old=before, operation="UPDATE", groups=["system:masters"])["allowed"]


def test_whose_pod_it_is_asks_for_another_share_and_writes_no_answer() -> None:
    before = pod(asking(core=30, memory=4))
    asks, answers = (pod(asking(core=30, memory=4), annotations={f"gpucloud.io/{word}": "40"}) for word in WORDS)
    assert judged(asks, old=before, operation="UPDATE")["allowed"]
    assert "leave its annotations" in refused(judged(answers, old=before, operation="UPDATE"))


def test_a_ceiling_is_moved_within_what_it_may_be() -> None:
    pods = [
        pod(asking(core=30, memory=4), annotations={"tencent.com/vcuda-core-limit": limit}) for limit in ("40", "20")
    ]
    assert "vcuda-core-limit is 20" in refused(judged(pods[1], old=pods[0], operation="UPDATE"))
    assert judged(pods[0], old=pods[1], operation="UPDATE")["allowed"]
    # What was wrong before it was watched does not keep others from changing the pod.
    assert judged(pods[1], old=pods[1], operation="UPDATE")["allowed"]


def test_a_pod_for_another_scheduler_is_told_of() -> None:
    asked = pod(asking(core=30, memory=4))
    assert judged(asked, Policy(scheduler_name="gpucloud"))["warnings"][0].startswith("schedulerName")


def test_a_quota_of_limits_counts_nothing_and_says_so() -> None:
    hard = {"requests.tencent.com/vcuda-core": "100", "limits.tencent.com/vcuda-core": "100", "pods": "4"}
    response = judged({"kind": "ResourceQuota", "metadata": {"name": "gpu"}, "spec": {"hard": hard}})
    assert response["allowed"]
    assert response["warnings"] == [
        "limits.tencent.com/vcuda-core is never counted: Kubernetes enforces requests.tencent.com/vcuda-core only."
    ]


def sharepod(**words: str) -> dict[str, Any]:
    said = {f"kubeshare/{word}": value for word, value in words.items()}
    return {**pod({}, annotations=said), "kind": "SharePod"}


def test_a_sharepod_is_judged_by_its_words() -> None:
    assert judged(sharepod(gpu_request="0.5", gpu_limit="1.0", gpu_mem="1048576"))["allowed"]
    assert "more than" in refused(judged(sharepod(gpu_request="0.9", gpu_limit="0.5", gpu_mem="1048576")))
    assert "asks for no share" in judged(sharepod())["warnings"][0]
    empty = sharepod()
    empty["spec"] = {}
    assert "no containers" in refused(judged(empty))


@pytest.mark.parametrize("said", [{"kind": "Deployment"}, {"kind": "Pod", "spec": [1]}, {"kind": "Pod", "metadata": 7}])
def test_what_is_not_ours_or_no_pod_is_left_to_the_api_server(said: dict[str, Any]) -> None:
    assert judged(said)["allowed"]
