"""A real kube-scheduler that delegates everything to the extender: bindings, repeated bindings, and preemptions."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import yaml

from apps.clusters.kube.client import Client, Refused
from apps.clusters.services import scheduler_configuration
from tests.clusters.cluster_objects import (
    CHOSEN,
    CORE,
    INDEX,
    add_namespace,
    add_node,
    end_as_a_kubelet,
    placement_of,
    pod,
)
from tests.clusters.control_plane import ControlPlane
from tests.clusters.extenders import Listening
from tests.processes import eventually

pytestmark = [pytest.mark.control_plane, pytest.mark.serial, pytest.mark.timeout(300)]
SCHEDULER = "gpucloud-everything"
Json = dict[str, Any]


class Failing(Client):
    """The extender's connection, on which bindings fail as a test says."""

    bindings = 0
    fail: Callable[[str], None] | None = None

    def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        if path.endswith("/binding"):
            self.bindings += 1
            if (fail := self.fail) is not None:
                self.fail = None
                fail(body["target"]["name"])
                raise Refused(500, "InternalError", "etcdserver: request timed out")
        return super().post(path, body)


@pytest.fixture(scope="module")
def listener() -> Iterator[Listening]:
    """Start the extender."""
    with Listening() as made:
        yield made


@pytest.fixture(scope="module")
def client(real_plane: ControlPlane, listener: Listening) -> Iterator[Failing]:
    """Connect a cluster whose scheduler filters, scores, binds and preempts through us; nodes come as full objects."""
    made = Failing(yaml.safe_load(real_plane.kubeconfig()))
    listener.begin("kube", made)
    real_plane.start_scheduler(asking_configuration(listener))
    yield made
    real_plane.stop_one("kube-scheduler")


def asking_configuration(listener: Listening, *, without: str = "") -> Json:
    """Return a scheduler's configuration; `without`: the verbs that it does itself."""
    entry = scheduler_configuration.extender(listener.url, everything=True)
    entry.pop(without, None)
    return scheduler_configuration.configuration(entry, scheduler_name=SCHEDULER)


@pytest.fixture(scope="module")
def ranks(client: Client) -> Mapping[str, str]:
    """Create priority classes, by their value."""
    for value in (1, 2, 5, 9):
        body = {"metadata": {"name": f"rank-{value}"}, "value": value}
        client.post("/apis/scheduling.k8s.io/v1/priorityclasses", body)
    return {str(value): f"rank-{value}" for value in (1, 2, 5, 9)}


def ask(client: Client, lab: str, name: str, *, core: int, rank: str = "", on: tuple[str, int] | None = None) -> None:
    """Create a pod for the lab's nodes; `on`: one that has run there for long, on that GPU."""
    limits = {CORE: str(core), "tencent.com/vcuda-memory": "1"}
    spec: Json = {
        "schedulerName": SCHEDULER,
        "nodeSelector": {"lab": lab},
        "containers": [{"name": "main", "image": "cuda", "resources": {"limits": limits}}],
    }
    metadata: Json = {"name": name}
    if rank:
        spec["priorityClassName"] = rank
    if on is not None:
        spec["nodeName"] = on[0]
        metadata["annotations"] = {INDEX: str(on[1]), CHOSEN: on[0]}
    client.post(f"/api/v1/namespaces/{lab}/pods", {"metadata": metadata, "spec": spec})


def names(client: Client, lab: str) -> set[str]:
    """Return the names of the lab's pods that are not being deleted."""
    found = client.get(f"/api/v1/namespaces/{lab}/pods")["items"]
    return {item["metadata"]["name"] for item in found if "deletionTimestamp" not in item["metadata"]}


def test_a_pod_that_fails_to_bind_is_placed_again_and_elsewhere_where_it_must(client: Failing) -> None:
    add_namespace(client, "fails")
    for name in ("fails-a", "fails-b"):
        add_node(client, name, gpus=1, units=96, lab="fails")
    chosen: list[str] = []

    def cordon(node: str) -> None:
        """Cordon the first chosen node, as if it died at that moment."""
        chosen.append(node)
        client.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})

    before, client.fail = client.bindings, cordon
    ask(client, "fails", "train", core=60)
    [other] = {"fails-a", "fails-b"} - {bound_first(client, chosen)}
    assert placement_of(client, "fails", "train", seconds=90) == (other, "0")
    assert client.bindings == before + 2
    # Its first promise is free again.
    client.patch(f"/api/v1/nodes/{chosen[0]}", {"spec": {"unschedulable": False}})
    ask(client, "fails", "next", core=100)
    assert placement_of(client, "fails", "next", seconds=90) == (chosen[0], "0")


def bound_first(client: Failing, chosen: list[str]) -> str:
    assert eventually(lambda: bool(chosen), seconds=60)
    return chosen[0]


def crowd(client: Client, lab: str, ranks: Mapping[str, str]) -> None:
    """Fill the nodes: kube-scheduler would end the cheap ones of node a, and free no GPU there."""
    add_namespace(client, lab)
    for name in ("a", "b"):
        add_node(client, f"{lab}-{name}", gpus=2, units=96, lab=lab)
    for gpu in (0, 1):
        ask(client, lab, f"a-kept-{gpu}", core=40, rank=ranks["9"], on=(f"{lab}-a", gpu))
        ask(client, lab, f"a-cheap-{gpu}", core=40, rank=ranks["1"], on=(f"{lab}-a", gpu))
        ask(client, lab, f"b-dear-{gpu}", core=100, rank=ranks["5"], on=(f"{lab}-b", gpu))


def test_pods_end_for_a_higher_priority_only_where_that_frees_its_gpus(
    client: Failing, ranks: Mapping[str, str]
) -> None:
    crowd(client, "urgent", ranks)
    before = names(client, "urgent")
    ask(client, "urgent", "wants", core=100, rank=ranks["9"])

    def placed() -> bool:
        end_as_a_kubelet(client, "urgent")
        return "nodeName" in pod(client, "urgent", "wants")["spec"]

    assert eventually(placed, seconds=120), pod(client, "urgent", "wants")["status"]
    [ended] = before - names(client, "urgent")
    assert ended.startswith("b-dear-")
    assert placement_of(client, "urgent", "wants") == ("urgent-b", ended[-1])


def test_where_its_sums_free_no_gpu_as_few_more_end_as_do(client: Failing, ranks: Mapping[str, str]) -> None:
    add_namespace(client, "apart")
    add_node(client, "apart-a", gpus=2, units=96, lab="apart")
    for gpu in (0, 1):
        ask(client, "apart", f"dear-{gpu}", core=40, rank=ranks["2"], on=("apart-a", gpu))
        ask(client, "apart", f"cheap-{gpu}", core=40, rank=ranks["1"], on=("apart-a", gpu))
    ask(client, "apart", "wants", core=100, rank=ranks["9"])

    def placed() -> bool:
        end_as_a_kubelet(client, "apart")
        return "nodeName" in pod(client, "apart", "wants")["spec"]

    assert eventually(placed, seconds=120), pod(client, "apart", "wants")["status"]
    assert names(client, "apart") == {"dear-0", "wants"}
    assert placement_of(client, "apart", "wants") == ("apart-a", "1")


def test_pods_of_its_own_priority_stay_and_it_waits(client: Failing, ranks: Mapping[str, str]) -> None:
    add_namespace(client, "equal")
    add_node(client, "equal-a", gpus=1, units=96, lab="equal")
    ask(client, "equal", "runs", core=100, rank=ranks["5"], on=("equal-a", 0))
    ask(client, "equal", "waits", core=100, rank=ranks["5"])
    assert eventually(lambda: "Insufficient" in str(pod(client, "equal", "waits")["status"]), seconds=60)
    assert names(client, "equal") == {"runs", "waits"}


def test_a_scheduler_that_does_not_ask_ends_pods_for_nothing(
    client: Failing, ranks: Mapping[str, str], real_plane: ControlPlane, listener: Listening
) -> None:
    """The control: a scheduler that does not ask preempts pods for nothing.

    It is last, because the others' scheduler asks.
    """
    real_plane.stop_one("kube-scheduler")
    real_plane.start_scheduler(asking_configuration(listener, without="preemptVerb"))
    crowd(client, "unasked", ranks)
    ask(client, "unasked", "wants", core=100, rank=ranks["9"])
    assert eventually(lambda: not names(client, "unasked") & {"a-cheap-0", "a-cheap-1"}, seconds=120)
    assert "nodeName" not in pod(client, "unasked", "wants")["spec"]
