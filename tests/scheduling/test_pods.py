"""Container messages to a node's agent for its claims."""

import msgspec
import pytest

from agent import wire
from apps.nodes.services import nodes
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.desired import desired_state
from tests.cast import Cast, Machine, give_plenty, hello, placed

POD = {"namespace": "vision", "name": "web-0", "container": "cuda", "uid": "4b1c"}


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool)


@pytest.fixture
def claim(cast: Cast, machine: Machine) -> Claim:
    claim, _ = placed(cast, machine)
    claim.change(pod=POD)
    return claim


def test_a_kubelets_agent_is_told_which_container_a_claim_is_for(claim: Claim, machine: Machine) -> None:
    said = msgspec.structs.replace(hello("gpu1"), kubernetes_node="10.0.200.4")
    over_the_wire = wire.decode_from_agent(wire.encode(said))
    assert isinstance(over_the_wire, wire.Hello)
    node = nodes.take_hello(node=machine.node, hello=over_the_wire)
    assert node.kubernetes_node == "10.0.200.4"
    told = wire.decode_from_server(wire.encode(desired_state(node)))
    assert isinstance(told, wire.Desired)
    assert [one.pod for one in told.assignments] == [wire.Pod(namespace="vision", name="web-0", container="cuda")]
    assert [one.pod_uid for one in told.assignments] == ["4b1c"]


def test_an_older_agent_is_told_nothing_that_it_cannot_read(claim: Claim, machine: Machine) -> None:
    assert '"pod"' not in wire.encode(desired_state(machine.node))
    assert "kubernetes_node" not in wire.encode(hello("gpu1"))


@pytest.mark.parametrize("container", ["", "x" * 64, 7])
def test_a_container_of_an_odd_name_holds_up_nobody(claim: Claim, machine: Machine, container: object) -> None:
    nodes.take_hello(node=machine.node, hello=msgspec.structs.replace(hello("gpu1"), kubernetes_node="10.0.200.4"))
    claim.change(pod={**POD, "container": container})
    [told] = desired_state(machine.node).assignments
    assert (told.claim_uid, told.pod) == (str(claim.uid), None)
