"""Shares of a running pod changed by its annotations: the claim is resized, refused with a message, or unchanged."""

from collections.abc import Mapping
from typing import Any

import pytest

from apps.clusters.formats.asks import Unreadable
from apps.clusters.formats.gpu_manager import CORE_LIMIT
from apps.clusters.kube.client import Refused
from apps.clusters.models import Cluster, PodClaim, PodResize
from apps.clusters.services import clusters, resizing
from apps.clusters.services.resizing import CORE, MEMORY
from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.desired import desired_state
from tests.cast import Cast, Machine, give_plenty, placed, used
from tests.clusters.kubeconfigs import kubeconfig

UID = "0b1f6a4e-6c1f-4c9e-9d0e-6a0c1a2b3c4d"


@pytest.fixture
def cluster(cast: Cast) -> Cluster:
    give_plenty(cast.acme, cast.globex)
    return clusters.connect(principal=SYSTEM, name="kube", pool=cast.pool, kubeconfig=kubeconfig())


@pytest.fixture
def machine(cast: Cast, cluster: Cluster) -> Machine:
    return Machine("gpu1", cast.pool)


@pytest.fixture
def container(cast: Cast, cluster: Cluster, machine: Machine) -> PodClaim:
    """Return a container of a running pod: 25 cores, 4 GiB."""
    claim, _ = placed(cast, machine, core_request=25, core_limit=25, memory_mib=4096)
    return PodClaim.objects.create(
        cluster=cluster, namespace="vision", pod="web-0", pod_uid=UID, container="cuda", container_index=0,
        node_name="gpu1", node=machine.node, core=25, memory_mib=4096, gpu_indexes=[0], claim=claim,
    )  # fmt: skip


def shares(container: PodClaim) -> tuple[int, int, int]:
    claim = Claim.objects.get(container=container)
    return claim.core_request, claim.core_limit, claim.memory_mib


def follow(container: PodClaim, **said: str) -> PodClaim:
    names = {"core": CORE, "limit": CORE_LIMIT, "memory": MEMORY}
    annotations = {names[name]: value for name, value in said.items()} | {"other": "1"}
    resizing.follow(cluster=container.cluster, pod_uid=container.pod_uid, annotations=annotations)
    return PodClaim.objects.select_related("claim", "resize").get(pk=container.pk)


def test_annotations_resize_the_claim_and_the_node_confirms(container: PodClaim, machine: Machine) -> None:
    after = follow(container, core="40", limit="80", memory="20")
    assert shares(container) == (40, 80, 5120)
    assert resizing.of_container(after).state == "pending"
    [wanted] = desired_state(machine.node).assignments
    assert (wanted.core_request, wanted.core_limit, wanted.memory_bytes) == (40, 80, 5120 << 20)
    machine.obey()
    after.refresh_from_db()
    assert resizing.of_container(after) == ("in-force", {"core": 40, "coreLimit": 80, "memory": 20, "generation": 2})
    event = AuditEvent.objects.filter(action="claim.resize").latest("pk")
    assert event.actor == "cluster:kube"


def test_what_cannot_be_done_is_refused_in_words_and_changes_nothing(container: PodClaim) -> None:
    for said, words in (
        ({"limit": "10"}, "10"),
        ({"core": "101"}, "is not a whole number from 0 to 100"),
        ({"memory": "-1"}, "is not a whole number"),
        ({"memory": "lots"}, "is not a whole number"),
        ({"memory": "1000"}, "MiB"),
    ):
        state, facts = resizing.of_container(follow(container, **said))
        assert state == "refused"
        assert words in facts["reason"]
        assert shares(container) == (25, 25, 4096)


def test_whole_gpus_give_a_part_away_and_take_it_back_while_it_is_free(
    cast: Cast, cluster: Cluster, machine: Machine
) -> None:
    gpu = machine.gpu()
    claim, _ = placed(cast, machine, gpu_count=2, core_request=100, core_limit=100, memory_mib=gpu.memory_mib)
    whole = PodClaim.objects.create(
        cluster=cluster, namespace="vision", pod="big-0", pod_uid=UID, container="cuda", container_index=0,
        node_name="gpu1", node=machine.node, core=200, memory_mib=2 * gpu.memory_mib, gpu_indexes=[0, 1], claim=claim,
    )  # fmt: skip
    follow(whole, core="60", memory="8")
    machine.obey()
    assert shares(whole) == (60, 60, 2048)
    assert used(cast.acme)["core_percent"] == 120
    assert [(one.core_free, one.memory_free_mib) for one in machine.node.gpus.order_by("index")[:2]] == [
        (40, gpu.memory_mib - 2048)
    ] * 2
    placed(cast, machine, name="between", core_request=30, core_limit=30, memory_mib=256)
    state, facts = resizing.of_container(follow(whole, core="100"))
    assert state == "refused"
    assert "GPU capacity exceeded" in facts["reason"]
    follow(whole, core="70")
    assert shares(whole)[0] == 70


def test_whoever_spoke_last_is_followed(container: PodClaim, cast: Cast) -> None:
    follow(container, core="40")
    uid = Claim.objects.get(container=container).uid
    assert cast.max.patch(f"claims/{uid}/", {"core_request": 30}).status == 200
    # The pod's next event brings the same annotation again.
    follow(container, core="40")
    assert shares(container)[0] == 30
    follow(container, core="35")
    assert shares(container)[0] == 35


def test_an_annotation_that_says_what_is_so_already_is_no_news(container: PodClaim) -> None:
    follow(container, limit="25")
    assert (Claim.objects.get(container=container).generation, PodResize.objects.get().told) == (1, "")
    assert not list(resizing._pending_pods(container.cluster))


def test_a_pod_without_annotations_of_ours_costs_no_row(container: PodClaim) -> None:
    follow(container)
    assert not PodResize.objects.exists()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("40", {"core_request": 40}),
        ("train=40, cuda=20", {"core_request": 20}),
        ("train=40", {}),
        ("cuda=", None),
        ("=", {}),
        ("cuda=4=4", None),
        ("4" * 5000, None),
        ("٤", None),
        ("", None),
    ],
)
def test_a_value_is_for_all_containers_or_for_some(said: str, expected: dict[str, int] | None) -> None:
    if expected is None:
        with pytest.raises(Unreadable):
            resizing.parse_request({CORE: said}, "cuda")
    else:
        assert resizing.parse_request({CORE: said}, "cuda") == expected


class Kube:
    """An API server that refuses requests, as long as there are refusals."""

    def __init__(self, *refusals: int) -> None:
        self.refusals = list(refusals)
        self.said: list[str] = []

    def patch(self, path: str, body: Mapping[str, Any]) -> bytes:
        if self.refusals:
            raise Refused(self.refusals.pop(0), "No", "not now")
        self.said.append(body["metadata"]["annotations"][resizing.STATUS])
        return b""

    def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        return b""


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_pod_that_could_not_be_told_just_now_is_told_a_moment_later(container: PodClaim, status: int) -> None:
    follow(container, core="40")
    kube = Kube(status)
    assert [resizing.tell(cluster=container.cluster, api=kube) for _ in range(3)] == [0, 1, 0]
    assert len(kube.said) == 1


def test_a_pod_that_is_gone_is_not_told_again(container: PodClaim) -> None:
    follow(container, core="40")
    kube = Kube(404)
    assert [resizing.tell(cluster=container.cluster, api=kube) for _ in range(2)] == [0, 0]
    assert kube.said == []
