"""A pool's sharing policy: set by an operator, sent to every node, with each claim's part in it."""

from datetime import timedelta
from typing import Any, get_args

import pytest
from django.utils import timezone

from agent import wire
from apps.nodes.models import Node
from apps.quotas.models import AuditEvent, Pool, SharingPolicy
from apps.quotas.principals import SYSTEM
from apps.quotas.services import tenants
from apps.scheduling import tasks
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.claims.sharing import change_pool
from tests.cast import GIB, Cast, Machine, give_plenty, placed
from tests.scheduling.sharing_oracle import Policy

ASKED = {"tenant": "acme", "core_request": 30, "memory_mib": GIB}


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool)


def wanted(machine: Machine) -> wire.Sharing | None:
    """Return the desired sharing of the node's one assignment."""
    return desired_state(machine.node).assignments[0].sharing


def frame(machine: Machine) -> int:
    return Node.objects.get(pk=machine.node.pk).frame


def test_a_policy_has_one_name_everywhere() -> None:
    names = [policy.name.lower() for policy in sorted(Policy)]
    assert names == list(get_args(wire.Policy)) == SharingPolicy.values


def test_a_pool_is_made_with_a_policy_and_shows_it(cast: Cast) -> None:
    assert cast.olga.get("pools/default/").body["sharing_policy"] == "burst"
    made = cast.olga.post("pools/", {"name": "small", "sharing_policy": "average", "core_ceiling": 90, "parts": 4})
    assert made.status == 201
    shown = cast.gus.get("pools/small/").body
    assert (shown["sharing_policy"], shown["core_ceiling"], shown["parts"]) == ("average", 90, 4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sharing_policy", "lottery"), ("sharing_policy", None), ("core_ceiling", 0), ("core_ceiling", 101),
        ("core_ceiling", "90"), ("parts", 0), ("parts", 17), ("name", "other"), ("policy", "fair"),
    ],
)  # fmt: skip
def test_a_wrong_field_of_a_pool_is_named_and_changes_nothing(cast: Cast, field: str, value: Any) -> None:
    answer = cast.olga.patch("pools/default/", {field: value})
    assert answer.code == "invalid-fields"
    assert field in answer.body["errors"]
    assert Pool.objects.get().version == 1


def test_average_needs_to_be_told_into_how_many_parts(cast: Cast) -> None:
    refused = cast.olga.patch("pools/default/", {"sharing_policy": "average"})
    assert (refused.status, refused.code) == (422, "parts-missing")
    assert cast.olga.post("pools/", {"name": "p", "sharing_policy": "average"}).code == "parts-missing"
    assert Pool.objects.get().sharing_policy == "burst"
    assert cast.olga.patch("pools/default/", {"sharing_policy": "average", "parts": 4}).status == 200
    assert cast.olga.patch("pools/default/", {"parts": 1}).code == "parts-missing"


def test_a_pool_is_changed_by_operators_and_by_nobody_who_read_an_older_one(cast: Cast) -> None:
    assert cast.anna.patch("pools/default/", {"sharing_policy": "fair"}).code == "role-missing"
    read = cast.olga.get("pools/default/").headers["ETag"]
    changed = cast.olga.patch("pools/default/", {"sharing_policy": "fair"}, If_Match=read)
    assert (changed.status, changed.headers["ETag"]) == (200, '"2"')
    stale = cast.olga.patch("pools/default/", {"sharing_policy": "fixed"}, If_Match=read)
    assert (stale.status, stale.code) == (412, "stale-version")
    event = AuditEvent.objects.get(action="pool.change")
    assert (event.before, event.after) == ({"sharing_policy": "burst"}, {"sharing_policy": "fair"})


def test_a_change_reaches_every_node_of_the_pool_in_one_push_and_no_other(
    cast: Cast, machine: Machine, django_capture_on_commit_callbacks: Any
) -> None:
    second = Machine("gpu2", cast.pool)
    elsewhere = Machine("gpu3", tenants.create_pool(principal=SYSTEM, name="other"))
    placed(cast, machine)
    before = [frame(one) for one in (machine, second, elsewhere)]
    with django_capture_on_commit_callbacks() as pushes:
        change_pool(principal=SYSTEM, pool=cast.pool, sharing_policy="fixed", core_ceiling=90)
    assert len(pushes) == 1
    assert [frame(one) for one in (machine, second, elsewhere)] == [before[0] + 1, before[1] + 1, before[2]]
    assert wanted(machine) == wire.Sharing(policy="fixed", ceiling=90)
    # The control: other changes send nothing to the nodes.
    change_pool(principal=SYSTEM, pool=cast.pool, description="for everyone")
    change_pool(principal=SYSTEM, pool=cast.pool, sharing_policy="fixed")
    assert frame(machine) == before[0] + 1


def test_a_push_of_a_policy_that_got_lost_is_sent_again(cast: Cast, machine: Machine) -> None:
    placed(cast, machine)
    change_pool(principal=SYSTEM, pool=cast.pool, sharing_policy="fair")
    assert tasks.repair_pushes() == 0
    earlier = timezone.now() - timedelta(seconds=6)
    Pool.objects.update(updated_at=earlier)
    Assignment.objects.update(updated_at=earlier)
    assert tasks.repair_pushes() == 1
    machine.obey()
    assert tasks.repair_pushes() == 0


def test_an_agent_that_knows_no_policies_reads_the_frames_of_a_pool_that_has_none(cast: Cast, machine: Machine) -> None:
    placed(cast, machine)
    assert "sharing" not in wire.encode(desired_state(machine.node))
    change_pool(principal=SYSTEM, pool=cast.pool, sharing_policy="fair")
    assert "sharing" in wire.encode(desired_state(machine.node))


def test_weight_and_class_go_with_the_claim(cast: Cast, machine: Machine) -> None:
    change_pool(principal=SYSTEM, pool=cast.pool, sharing_policy="weighted")
    made = cast.max.post("claims/", {**ASKED, "weight": 3, "class": "best-effort"}).body
    assert (made["weight"], made["class"]) == (3, "best-effort")
    usual = cast.max.post("claims/", ASKED).body
    assert (usual["weight"], usual["class"]) == (1, "guaranteed")
    claim, _ = placed(cast, machine, weight=5, best_effort=True)
    told = {one.claim_uid: one.sharing for one in desired_state(machine.node).assignments}
    assert told[made["uid"]] == wire.Sharing(policy="weighted", weight=3, best_effort=True)
    assert told[usual["uid"]] == wire.Sharing(policy="weighted")
    assert told[str(claim.uid)] == wire.Sharing(policy="weighted", weight=5, best_effort=True)


def test_weight_and_class_move_live_like_the_limits(cast: Cast, machine: Machine) -> None:
    claim, assignment = placed(cast, machine)
    answer = cast.max.patch(f"claims/{claim.uid}/", {"weight": 7, "class": "best-effort"})
    assert (answer.body["weight"], answer.body["class"]) == (7, "best-effort")
    assert answer.body["generation"] == claim.generation + 1
    assert answer.body["observed_generation"] == claim.generation
    machine.obey()
    assignment.refresh_from_db()
    assert assignment.observed_generation == assignment.generation == claim.generation + 1
    # The limits and the charges are unchanged.
    again = Claim.objects.get(pk=claim.pk)
    assert (again.core_request, again.core_limit, again.charged) == (30, 30, claim.charged)
