"""Names of nodes in Kubernetes that agents say in their hello."""

import msgspec
import pytest

from apps.clusters.dra.devices import DeviceReader
from apps.clusters.models import Cluster, JoinedNode
from apps.clusters.services import clusters, placing
from apps.nodes.models import Node
from apps.nodes.services import nodes
from apps.nodes.services.kubernetes_names import KubernetesNameTaken
from apps.quotas.principals import SYSTEM
from tests.cast import Cast, Machine, hello
from tests.clusters.kubeconfigs import kubeconfig
from tests.racing import race


@pytest.fixture
def cluster(cast: Cast) -> Cluster:
    return clusters.connect(principal=SYSTEM, name="kube", pool=cast.pool, kubeconfig=kubeconfig())


def say(machine: Machine, name: str) -> Node:
    """Let the machine's agent say this name in Kubernetes."""
    said = msgspec.structs.replace(hello(machine.name), kubernetes_node=name, dra=True)
    return nodes.take_hello(node=Node.objects.get(pk=machine.node.pk), hello=said)


def test_an_agent_cannot_take_another_nodes_name(cast: Cast, cluster: Cluster) -> None:
    intruder, owner = Machine("a", cast.pool), Machine("b", cast.pool)
    say(owner, "worker")
    with pytest.raises(KubernetesNameTaken, match="node forget b"):
        say(intruder, "worker")
    assert placing.node_of(cast.pool, "worker") == owner.node
    published = DeviceReader(cluster).read()["worker"]
    assert {gpu.uuid for gpu in published} == {owner.gpu(index).uuid for index in range(4)}


def test_nor_that_of_a_node_whose_agent_says_none(cast: Cast) -> None:
    intruder, owner = Machine("a", cast.pool), Machine("worker", cast.pool)
    with pytest.raises(KubernetesNameTaken):
        say(intruder, "worker")
    assert placing.node_of(cast.pool, "worker") == owner.node


def test_a_forgotten_nodes_name_is_free(cast: Cast) -> None:
    heir, owner = Machine("a", cast.pool), Machine("b", cast.pool)
    say(owner, "worker")
    Node.objects.filter(pk=owner.node.pk).update(last_seen_at=None)
    assert say(heir, "worker").kubernetes_node == "worker"


def test_a_joined_node_keeps_the_name_that_its_cluster_vouched_for(cast: Cast, cluster: Cluster) -> None:
    joined, first = Machine("a", cast.pool), Machine("b", cast.pool)
    JoinedNode.objects.create(cluster=cluster, kubernetes_node="worker", node=joined.node)
    with pytest.raises(KubernetesNameTaken, match="GPUCLOUD_KUBERNETES_NODE=worker"):
        say(joined, "other")
    # An agent said it before the machine itself came.
    say(first, "worker")
    say(joined, "worker")
    assert placing.node_of(cast.pool, "worker") == joined.node
    assert Node.objects.get(pk=first.node.pk).kubernetes_node == ""


@pytest.mark.django_db(transaction=True)
def test_of_two_that_say_it_at_once_one_gets_it(real_cast: Cast) -> None:
    machines = [Machine(f"n{number}", real_cast.pool) for number in range(6)]
    race([lambda machine=machine: say(machine, "worker") for machine in machines])  # type: ignore[misc]
    assert Node.objects.filter(kubernetes_node="worker").count() == 1
