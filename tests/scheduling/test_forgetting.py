"""Forgetting a lost node gives back what it held, and keeps its agent out."""

from datetime import timedelta

import pytest
from django.utils import timezone

from apps.nodes.models import Gpu, Node
from apps.nodes.services import nodes
from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.scheduling.services.reclaiming.forgetting import NodeOnline, forget_node
from tests.cast import GIB, Cast, Machine, assert_books_agree, give, hello, placed, used


def lose(machine: Machine) -> Node:
    """Let the machine's heartbeat expire."""
    Node.objects.filter(pk=machine.node.pk).update(last_seen_at=timezone.now() - timedelta(minutes=5))
    return Node.objects.get(pk=machine.node.pk)


def test_a_lost_node_keeps_its_charges_until_it_is_forgotten(cast: Cast) -> None:
    give(cast.acme, core_percent=100, memory_mib=16 * GIB)
    machine = Machine("gpu1", cast.pool)
    claim, _ = placed(cast, machine, core_request=30, memory_mib=8 * GIB)
    lose(machine)
    assert used(cast.acme) == {"core_percent": 30, "memory_mib": 8 * GIB}
    assert cast.olga.post("nodes/gpu1/forget/").status == 200
    assert used(cast.acme) == {"core_percent": 0, "memory_mib": 0}
    assert cast.max.get(f"claims/{claim.uid}/").body["state"] == "released"
    assert (machine.gpu(0).core_used, machine.gpu(0).memory_used_mib, machine.gpu(0).present) == (0, 0, False)
    assert_books_agree()


def test_a_node_that_is_heard_of_cannot_be_forgotten(cast: Cast) -> None:
    machine = Machine("gpu1", cast.pool)
    with pytest.raises(NodeOnline):
        forget_node(principal=SYSTEM, node=machine.node)
    assert cast.olga.post("nodes/gpu1/forget/").code == "node-online"
    assert cast.max.post("nodes/gpu1/forget/").code == "role-missing"


def test_a_forgotten_nodes_agent_is_refused_until_it_is_enrolled_again(cast: Cast) -> None:
    machine = Machine("gpu1", cast.pool)
    digest = "0" * 64
    nodes.enrol(token=machine.enrolment, key_digest=digest)
    forget_node(principal=SYSTEM, node=lose(machine))
    node = Node.objects.get(pk=machine.node.pk)
    assert (node.state, node.key_digest) == ("awaiting-agent", None)
    _, token = nodes.renew_enrolment(principal=SYSTEM, node=node)
    assert nodes.enrol(token=token, key_digest=digest).key_digest is not None


def test_a_gpu_that_reports_less_than_is_promised_keeps_its_promises(cast: Cast) -> None:
    give(cast.acme, core_percent=100, memory_mib=24 * GIB)
    machine = Machine("gpu1", cast.pool, gpus=1, memory_mib=16 * GIB)
    placed(cast, machine, memory_mib=16 * GIB)
    nodes.take_hello(node=machine.node, hello=hello("gpu1", gpus=1, memory_mib=15 * GIB))
    assert (machine.gpu().memory_mib, machine.gpu().memory_free_mib) == (16 * GIB, 0)
    nodes.take_hello(node=machine.node, hello=hello("gpu1", gpus=1, memory_mib=20 * GIB))
    assert machine.gpu().memory_free_mib == 4 * GIB


def test_a_forgotten_nodes_open_connection_says_no_second_hello(cast: Cast) -> None:
    machine = Machine("gpu1", cast.pool)
    nodes.enrol(token=machine.enrolment, key_digest="0" * 64)
    connected = Node.objects.get(pk=machine.node.pk)
    forget_node(principal=SYSTEM, node=lose(machine))
    with pytest.raises(nodes.CredentialRevoked):
        nodes.take_hello(node=connected, hello=hello("gpu1"))
    assert not machine.gpu(0).present


def say_hello(cast: Cast, name: str, gpus_of: Machine) -> Node:
    """Enrol a node that has the other machine's GPUs."""
    node, _token = nodes.create_node(principal=SYSTEM, name=name, pool=cast.pool)
    told = hello(gpus_of.node.name)
    return nodes.take_hello(node=node, hello=told)


def test_a_gpu_under_another_node_name_is_refused_with_what_to_do(cast: Cast) -> None:
    machine = Machine("gpu1", cast.pool)
    with pytest.raises(nodes.GpuElsewhere, match=r"^Stop the agent of node gpu1, then run `gpucloud node forget gpu1`"):
        say_hello(cast, "renamed", machine)
    lose(machine)
    with pytest.raises(nodes.GpuElsewhere, match=r"^Run `gpucloud node forget gpu1`: "):
        say_hello(cast, "again", machine)
    assert machine.gpu(0).node.name == "gpu1"


def test_what_the_refusal_says_works(cast: Cast) -> None:
    give(cast.acme, core_percent=100, memory_mib=16 * GIB)
    machine = Machine("gpu1", cast.pool)
    placed(cast, machine)
    forget_node(principal=SYSTEM, node=lose(machine))
    node = say_hello(cast, "renamed", machine)
    assert {(gpu.node.name, gpu.present) for gpu in Gpu.objects.all()} == {("renamed", True)}
    assert AuditEvent.objects.filter(action="gpu.move", actor="agent:renamed").count() == node.gpus.count()
    # The old name has none: its agent, enrolled anew, is the one that is refused.
    with pytest.raises(nodes.GpuElsewhere, match="forget renamed"):
        nodes.take_hello(node=Node.objects.get(name="gpu1"), hello=hello("gpu1"))
    assert_books_agree()
