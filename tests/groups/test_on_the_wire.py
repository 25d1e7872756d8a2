"""Nodes are told of the groups of their claims, by the frame that a change of the members brings."""

from msgspec import UNSET

from apps.groups import sizing
from apps.nodes.models import Node
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.claims.lifecycle import release_claim
from tests.cast import Cast, Machine, placed
from tests.groups.elastic import train


def test_every_node_of_a_group_gets_all_its_members_in_the_order_of_ranks(cast: Cast, machine: Machine) -> None:
    other = Machine("gpu2", cast.pool, gpus=1).stay_online()
    group = train(cast, machine, other, least=5, most=5)
    group.step()
    for node, here in ((machine, 4), (other, 1)):
        groups = desired_state(node.node).groups
        assert groups is not UNSET
        told = groups[0]
        assert (told.name, told.least, told.most, told.generation) == ("train", 5, 5, 1)
        assert [member.claim for member in told.members] == [
            str(uid) for uid in Claim.objects.filter(group="train").order_by("pk").values_list("uid", flat=True)
        ]
        assert len(told.claims) == here
        assert {member.host for member in told.members} == {"gpu1", "gpu2"}


def test_a_change_of_the_members_brings_each_of_their_nodes_a_new_frame_once(cast: Cast, machine: Machine) -> None:
    other = Machine("gpu2", cast.pool, gpus=1).stay_online()
    group = train(cast, machine, other, least=1, most=5)
    for _ in range(2):
        group.step()
    assert len(group.ranks()) == 5
    before = dict(Node.objects.values_list("name", "frame"))
    sizing.drive()
    assert dict(Node.objects.values_list("name", "frame")) == before
    last = Claim.objects.filter(group="train").order_by("-pk")[0]
    on_other = last.assignments.get().gpu.node.name == "gpu2"
    release_claim(principal=SYSTEM, claim=last)
    between = dict(Node.objects.values_list("name", "frame"))
    sizing.drive()
    after = dict(Node.objects.values_list("name", "frame"))
    assert {name for name in after if after[name] > between[name]} == {"gpu1", "gpu2"}, on_other
    assert len(group.ranks()) == 4


def test_a_node_without_a_group_gets_the_frame_that_an_older_agent_knows(cast: Cast, machine: Machine) -> None:
    placed(cast, machine)
    assert desired_state(machine.node).groups is UNSET
