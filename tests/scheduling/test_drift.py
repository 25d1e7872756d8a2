"""Drift reports of agents: stored, shown beside the desired state, and repaired on an operator's order."""

from typing import Any

import pytest
from msgspec import UNSET

from agent import wire
from apps.nodes.models import Node
from apps.quotas.models import AuditEvent
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.claims.observation import take_observed
from tests.cast import Cast, Machine, done, give_plenty, placed
from tests.scheduling.scrapes import scrape


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool)


@pytest.fixture
def carried(cast: Cast, machine: Machine) -> tuple[Claim, Assignment]:
    return placed(cast, machine)


def drift(claim: Claim, **facts: Any) -> wire.Drift:
    known: dict[str, Any] = {"kind": "limits-changed", "mendable": True, "detail": "It was edited.", "since": 1.5}
    return wire.Drift(**{**known, "claim_uid": str(claim.uid), **facts})


def tell(machine: Machine, *drifts: wire.Drift) -> Node:
    """Handle one `observed` frame, through the wire codec."""
    wanted = desired_state(machine.node)
    facts: dict[str, Any] = {"drifts": list(drifts)} if drifts else {}
    frame = wire.Observed(frame=wanted.frame, assignments=[done(one) for one in wanted.assignments], **facts)
    decoded = wire.decode_from_agent(wire.encode(frame))
    assert isinstance(decoded, wire.Observed)
    take_observed(node=machine.node, frame=decoded)
    return Node.objects.get(pk=machine.node.pk)


def test_drift_is_shown_beside_what_is_wanted_and_goes_away(
    cast: Cast, machine: Machine, carried: tuple[Claim, Assignment]
) -> None:
    claim, assignment = carried
    tell(machine, drift(claim))
    body = cast.olga.get("nodes/gpu1/drift/").body
    assert body["drifts"] == [
        {
            "kind": "limits-changed",
            "claim_uid": str(claim.uid),
            "detail": "It was edited.",
            "mendable": True,
            "since": 1.5,
        }
    ]
    [row] = body["assignments"]
    assert (row["uid"], row["claim"], row["in_step"]) == (str(assignment.uid), str(claim.uid), False)
    assert row["desired"] == {
        "generation": 1, "core_request": 30, "core_limit": 30, "memory_mib": 8192, "present": True,
    }  # fmt: skip
    assert (row["observed"]["generation"], row["observed"]["state"]) == (1, "in_force")
    assert cast.olga.get("nodes/gpu1/").body["drifted"] == 1
    assert scrape(cast.olga).value("gpucloud_nodes_drifted", pool="default") == 1
    tell(machine)
    body = cast.olga.get("nodes/gpu1/drift/").body
    assert (body["drifts"], body["assignments"][0]["in_step"]) == ([], True)


def test_what_is_not_in_force_yet_is_not_in_step(
    cast: Cast, machine: Machine, carried: tuple[Claim, Assignment]
) -> None:
    claim, _ = carried
    assert cast.max.patch(f"claims/{claim.uid}/", {"core_limit": 60}).status == 200
    [row] = cast.olga.get("nodes/gpu1/drift/").body["assignments"]
    assert (row["in_step"], row["desired"]["core_limit"], row["desired"]["generation"]) == (False, 60, 2)
    assert row["observed"]["generation"] == 1


def test_only_operators_see_it_and_order_a_repair(
    cast: Cast, machine: Machine, carried: tuple[Claim, Assignment]
) -> None:
    tell(machine, drift(carried[0]))
    assert cast.anna.get("nodes/gpu1/drift/").code == "role-missing"
    assert cast.anna.post("nodes/gpu1/repair/").code == "role-missing"


def test_a_node_that_is_to_wait_is_told_so_until_somebody_orders_the_repair(
    cast: Cast, machine: Machine, carried: tuple[Claim, Assignment]
) -> None:
    assert desired_state(machine.node).mend is not False
    before = Node.objects.get(name="gpu1").frame
    assert cast.olga.patch("nodes/gpu1/", {"repair_drift": False}).body["repair_drift"] is False
    assert Node.objects.get(name="gpu1").frame == before + 1
    assert desired_state(machine.node).mend is False
    tell(machine, drift(carried[0]))
    answer = cast.olga.post("nodes/gpu1/repair/")
    assert answer.status == 200
    assert (desired_state(machine.node).frame, desired_state(machine.node).mend) == (before + 2, UNSET)
    assert AuditEvent.objects.get(action="node.repair").after == {"drifts": ["limits-changed"]}
    # A repeated report: the order stands, and may be sent twice.
    tell(machine, drift(carried[0], since=2.5))
    assert desired_state(machine.node).mend is UNSET
    assert cast.olga.post("nodes/gpu1/repair/").status == 200
    # Repaired: a later drift waits for an operator again, and the agent is told so.
    node = tell(machine, drift(carried[0], kind="library-other", mendable=False))
    assert node.repair_asked_at is None
    assert desired_state(machine.node).mend is False
    assert node.frame == before + 4


def test_a_pool_whose_nodes_are_to_wait_says_so_of_each_and_a_node_alone_can(
    cast: Cast, machine: Machine, carried: tuple[Claim, Assignment]
) -> None:
    before = Node.objects.get(name="gpu1").frame
    assert cast.olga.patch("pools/default/", {"repair_drift": False}).body["repair_drift"] is False
    assert (Node.objects.get(name="gpu1").frame, desired_state(machine.node).mend) == (before + 1, False)
    tell(machine, drift(carried[0]))
    assert cast.olga.post("nodes/gpu1/repair/").status == 200
    assert desired_state(machine.node).mend is UNSET
    cast.olga.patch("pools/default/", {"repair_drift": True})
    cast.olga.patch("nodes/gpu1/", {"repair_drift": False})
    Node.objects.update(repair_asked_at=None)
    assert desired_state(machine.node).mend is False


def test_nothing_to_repair_is_said_in_words(cast: Cast, machine: Machine, carried: tuple[Claim, Assignment]) -> None:
    answer = cast.olga.post("nodes/gpu1/repair/")
    assert (answer.status, answer.code, answer.body["drifts"]) == (409, "nothing-to-repair", 0)
    tell(machine, drift(carried[0], mendable=False))
    assert cast.olga.post("nodes/gpu1/repair/").body["drifts"] == 1


def test_a_frame_without_news_of_drift_writes_nothing(
    cast: Cast, machine: Machine, carried: tuple[Claim, Assignment]
) -> None:
    once = tell(machine, drift(carried[0]))
    again = tell(machine, drift(carried[0]))
    assert (again.version, again.updated_at) == (once.version, once.updated_at)


def test_the_nodes_page_lists_what_was_changed_and_puts_it_right(
    cast: Cast, machine: Machine, carried: tuple[Claim, Assignment], client: Any
) -> None:
    tell(machine, drift(carried[0]))
    from apps.quotas.models import User

    client.force_login(User.objects.get(username="olga"))
    page = client.get("/nodes/gpu1/")
    assert "It was edited." in page.content.decode()
    answer = client.post("/nodes/gpu1/repair/", follow=True)
    assert "repairs the changes" in answer.content.decode()
    assert Node.objects.get(name="gpu1").repair_asked_at is not None
    client.force_login(User.objects.get(username="anna"))
    assert client.post("/nodes/gpu1/repair/").status_code == 403
