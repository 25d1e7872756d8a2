"""Back ends of pools: chosen with the first claim on a GPU, kept while claims are there, and MPS without suspension."""

from typing import Any

import pytest
from django.utils import timezone

from apps.console.claims.suspension_facts import find_suspension_facts
from apps.console.pools.back_ends import differing
from apps.nodes.models import Node
from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.reclaiming.reclaim import find_ends
from apps.suspension.rotation.scene import picture
from tests.cast import GIB, Cast, Machine, ask, assert_books_agree, give, give_plenty, placed
from tests.suspension.test_drains import drain, fresh, turn
from tests.suspension.test_suspending import resume, suspend, suspended


@pytest.fixture
def machine(cast: Cast) -> Machine:
    """Create a node of four GPUs that can serve all back ends."""
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool, host_memory_mib=20 * GIB, backends=["mps", "native"]).stay_online()


def use(cast: Cast, backend: str) -> None:
    change_pool(principal=SYSTEM, pool=cast.pool, backend=backend)
    cast.pool.refresh_from_db()


def on_the_wire(machine: Machine) -> dict[str, str]:
    """Return the back end of each claim in the desired state, by name."""
    return {one.claim_name: one.backend for one in desired_state(machine.node).assignments}


def test_a_pool_says_how_its_claims_use_a_gpu_and_the_agent_is_told(cast: Cast, machine: Machine) -> None:
    placed(cast, machine, name="old")
    answer = cast.olga.patch(f"pools/{cast.pool.name}/", {"backend": "mps"})
    assert (answer.status, answer.body["backend"]) == (200, "mps")
    event = AuditEvent.objects.filter(action="pool.change").latest("pk")
    assert (event.before, event.after) == ({"backend": "turns"}, {"backend": "mps"})
    policy: Any = desired_state(machine.node).policy
    assert policy.backend == "mps"
    bad = cast.olga.patch(f"pools/{cast.pool.name}/", {"backend": "mig"})
    assert (bad.status, "backend" in str(bad.body)) == (400, True)


def test_a_gpu_keeps_its_back_end_until_its_last_claim_has_left(cast: Cast, machine: Machine) -> None:
    old, first = placed(cast, machine, name="old")
    use(cast, "mps")
    assert on_the_wire(machine) == {"old": "turns"}
    # Binpack and its like choose the fullest GPU: the one with the old claim.
    _, second = placed(cast, machine, name="new")
    assert second.gpu_id == first.gpu_id
    assert on_the_wire(machine) == {"old": "turns", "new": "turns"}
    release_claim(principal=SYSTEM, claim=old)
    machine.obey()
    _, third = placed(cast, machine, name="newer", core_request=60)
    assert third.gpu_id == first.gpu_id
    assert on_the_wire(machine)["newer"] == "turns", "one of the old ones is still there"
    for claim in Claim.objects.live():
        release_claim(principal=SYSTEM, claim=claim)
    machine.obey()
    _, last = placed(cast, machine, name="last")
    assert on_the_wire(machine) == {"last": "mps"}
    assert cast.olga.get(f"gpus/{last.gpu.uuid}/").body["backend"] == "mps"
    assert_books_agree()


def test_a_claim_of_several_gpus_runs_beside_the_servers(cast: Cast, machine: Machine) -> None:
    use(cast, "mps")
    placed(cast, machine, name="two", gpu_count=2)
    assert {one.backend for one in desired_state(machine.node).assignments} == {"native"}


def test_a_node_that_cannot_serve_the_back_end_takes_no_claims_and_the_queue_says_why(
    cast: Cast, machine: Machine
) -> None:
    Node.objects.update(backends=["native"])
    use(cast, "mps")
    claim = ask(cast, name="waits")
    run_round(cast.pool)
    assert fresh(claim).state == "queued"
    assert "cannot serve back end mps" in str(claim.reasons)
    Node.objects.update(backends=["mps", "native"])
    run_round(cast.pool)
    assert fresh(claim).state == "assigned"


def test_tenants_have_gpus_of_their_own_as_long_as_there_is_room(cast: Cast, machine: Machine) -> None:
    use(cast, "mps")
    tenants = (cast.acme, cast.globex, cast.acme, cast.globex)
    rows = [placed(cast, machine, name=f"claim-{at}", tenant=tenant)[1] for at, tenant in enumerate(tenants)]
    mine, other = ({row.gpu_id for row in rows if row.claim.tenant == tenant} for tenant in (cast.acme, cast.globex))
    assert len(mine) == len(other) == 1
    assert mine != other
    for number in range(2):
        placed(cast, machine, name=f"whole-{number}", core_request=100)
    _, third = placed(cast, machine, name="squeezed", tenant=cast.globex, core_request=35)
    assert third.gpu_id in mine | other
    _, fourth = placed(cast, machine, name="mixed", tenant=cast.globex, core_request=40)
    assert fourth.gpu_id in mine, "a preference, and no more"
    assert_books_agree()


def test_one_server_for_all_tenants_is_a_pools_choice_which_gpus_with_claims_do_not_follow(
    cast: Cast, machine: Machine
) -> None:
    use(cast, "mps")
    old, first = placed(cast, machine, name="old")
    groups = lambda: {one.claim_name: one.trust_group for one in desired_state(machine.node).assignments}  # noqa: E731
    answer = cast.olga.patch(f"pools/{cast.pool.name}/", {"mps_group": "pool"})
    assert (answer.status, answer.body["mps_group"]) == (200, "pool")
    event = AuditEvent.objects.filter(action="pool.change").latest("pk")
    assert (event.before, event.after) == ({"mps_group": "tenant"}, {"mps_group": "pool"})
    cast.pool.refresh_from_db()
    assert differing(cast.pool) == 1
    _, second = placed(cast, machine, name="second", tenant=cast.globex)
    _, third = placed(cast, machine, name="third", tenant=cast.acme)
    assert first.gpu_id != second.gpu_id == third.gpu_id
    assert groups() == {"old": "", "second": "*", "third": "*"}
    assert cast.olga.get(f"gpus/{second.gpu.uuid}/").body["mps_group"] == "pool"
    release_claim(principal=SYSTEM, claim=old)
    machine.obey()
    placed(cast, machine, name="whole", core_request=100)
    placed(cast, machine, name="another", core_request=100)
    placed(cast, machine, name="last", core_request=100)
    assert set(groups().values()) == {"*"}
    assert cast.olga.patch(f"pools/{cast.pool.name}/", {"mps_group": "everybody"}).status == 400


def test_suspension_and_moves_are_refused_before_the_agent_is_asked(cast: Cast, machine: Machine) -> None:
    use(cast, "mps")
    claim, _ = placed(cast, machine)
    for query in ("", "?dry_run=true"):
        answer = suspend(cast, claim, query)
        assert (answer.status, answer.body["type"].rpartition("/")[2]) == (409, "cannot-suspend")
        assert "back end mps" in answer.body["detail"]
    answer = cast.max.post(f"claims/{claim.uid}/move/", {})
    assert (answer.status, answer.body["type"].rpartition("/")[2]) == (409, "cannot-suspend")
    assert fresh(claim).state == "active"
    row = Claim.objects.prefetch_related("assignments__gpu__node").get(pk=claim.pk)
    facts = find_suspension_facts(row)
    assert (facts["may_suspend"], facts["may_move"]) == (False, False)


def test_drain_and_preemption_release_what_cannot_be_suspended(cast: Cast, machine: Machine) -> None:
    use(cast, "mps")
    change_pool(principal=SYSTEM, pool=cast.pool, preempt_by="suspend")
    claim, _ = placed(cast, machine)
    action, words = find_ends([Claim.objects.select_related("pool").get(pk=claim.pk)])[claim.pk]
    assert action == "requeue"
    assert "back end mps" in words
    assert drain(cast).status == 200
    turn()
    turn(grace_is_over=True)
    assert fresh(claim).state in ("releasing", "queued")


def test_rotation_leaves_gpus_under_mps_alone(cast: Cast, machine: Machine) -> None:
    change_pool(principal=SYSTEM, pool=cast.pool, oversubscribe=2)
    cast.pool.refresh_from_db()
    _, assignment = placed(cast, machine)
    assert assignment.gpu.uuid in {gpu.key for gpu in picture(cast.pool, now=timezone.now()).scene.gpus}
    assignment.gpu.change(backend="mps")
    assert assignment.gpu.uuid not in {gpu.key for gpu in picture(cast.pool, now=timezone.now()).scene.gpus}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"oversubscribe": 2}, "oversubscribe suspend and move"),
        ({"pack_keep_percent": 90}, "pack_keep_percent suspend and move"),
        ({"idle_rule": "shrink"}, "which only turns give back"),
    ],
)
def test_settings_that_need_suspension_or_lending_are_refused_under_mps(
    cast: Cast, settings: dict[str, Any], words: str
) -> None:
    answer = cast.olga.patch(f"pools/{cast.pool.name}/", {"backend": "mps", **settings})
    assert answer.status in (400, 422)
    assert words in answer.body["detail"]
    created = cast.olga.post("pools/", {"name": "other", "backend": "mps", **settings})
    assert created.status == answer.status
    assert cast.olga.patch(f"pools/{cast.pool.name}/", settings).status == 200


def test_a_suspended_claim_comes_back_to_the_back_end_that_it_had(cast: Cast, machine: Machine) -> None:
    give(cast.acme, host_memory_mib=20 * GIB, vgpus=10)
    claim = suspended(cast, machine, name="sleeps")
    own = claim.assignments.get().gpu
    use(cast, "mps")
    others = [placed(cast, machine, name=f"new-{number}", core_request=60)[1] for number in range(4)]
    kinds = {row.gpu_id: row.gpu.backend for row in others}
    assert kinds.pop(own.pk) == "turns", "a suspended claim is still there"
    assert set(kinds.values()) == {"mps"}
    assert resume(cast, claim).status == 202
    run_round(cast.pool)
    machine.obey()
    assert fresh(claim).state == "active"
    assert claim.assignments.live().get().gpu_id == own.pk
    assert on_the_wire(machine)["sleeps"] == "turns"
    assert_books_agree()
