"""Preemption by suspension: borrowers' programs stop for a lender's claim, and go on afterwards."""

from collections import Counter
from functools import partial

import pytest

from apps.nodes.models import Node
from apps.quotas.models import WebhookDelivery
from apps.quotas.principals import SYSTEM
from apps.quotas.services.tenants import change_tenant
from apps.scheduling.models import Claim
from apps.scheduling.services.claims import suspending
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.reclaiming import preemption
from apps.suspension.services import resume_claim, suspend_claim
from tests.cast import GIB, Cast, Machine, assert_books_agree, give, placed, seen, used
from tests.racing import outcomes, race
from tests.scheduling.test_preemption import Lab, audited, fresh


def build(cast: Cast, *, host_memory_mib: int = 20 * GIB, quota: int = 200) -> Lab:
    """Create a lab of four GPUs in which globex borrows all that acme lends, and is suspended for it."""
    for tenant in (cast.acme, cast.globex):
        change_tenant(principal=SYSTEM, tenant=tenant, cohort="lab")
        tenant.refresh_from_db()
        give(tenant, core_percent=quota, memory_mib=None)
    machine = Machine("gpu1", cast.pool, host_memory_mib=host_memory_mib)
    sizes = {"tenant": cast.globex, "core_request": 100, "memory_mib": GIB}
    borrowed = [placed(cast, machine, **sizes)[0] for _ in range(4)]
    change_pool(principal=SYSTEM, pool=cast.pool, preempt_by="suspend")
    cast.pool.refresh_from_db()
    return Lab(cast, machine, borrowed)


@pytest.fixture
def lab(cast: Cast) -> Lab:
    return build(cast)


def preempt(lab: Lab) -> Claim:
    """Let acme want a GPU, and the grace of whom that concerns be over; return the nominee."""
    nominee = lab.wants()
    preemption.drive()
    lab.grace_is_over()
    preemption.drive()
    return nominee


def test_a_borrower_is_suspended_and_goes_on_when_the_lender_has_finished(lab: Lab) -> None:
    nominee = lab.wants()
    preemption.drive()
    victim = fresh(lab.borrowed[3])
    assert "it is suspended, and goes on when its GPUs have room for it" in victim.reasons[0]["detail"]
    lab.grace_is_over()
    preemption.drive()
    assert lab.states() == "active active active suspending!"
    assert fresh(victim).suspended_by == "reclaim"
    lab.machine.obey()
    # It waits at once, with its age, and not before the claim for which it left.
    assert lab.states() == "active active active resuming"
    assert fresh(victim).waits_to_resume
    assert [state for state, _ in victim.timeline][-3:] == ["suspending", "suspended", "resuming"]
    lab.round()
    lab.machine.obey()
    assert (fresh(nominee).state, fresh(victim).state) == ("active", "resuming")
    assert used(lab.cast.globex)["core_percent"] == 300
    assert_books_agree()

    preemption.drive()
    release_claim(principal=SYSTEM, claim=nominee)
    lab.machine.obey()
    lab.round()
    lab.machine.obey()
    assert lab.states() == "active active active active"
    assert fresh(victim).suspended_by == ""
    assert audited(victim) == ["notice", "suspend"]
    assert_books_agree()


def test_a_suspended_borrower_of_higher_priority_does_not_take_its_gpu_back_first(cast: Cast) -> None:
    # Quotas have room for both: only the GPU that is withheld for the lender keeps the borrower off it.
    lab = build(cast, quota=300)
    Claim.objects.filter(pk__in=[claim.pk for claim in lab.borrowed]).update(priority=900)
    nominee = preempt(lab)
    lab.machine.obey()
    assert lab.states() == "active active active resuming"
    lab.round()
    assert fresh(nominee).state == "assigned"
    assert lab.states() == "active active active resuming"


def test_room_that_is_being_freed_counts_so_no_second_borrower_goes(lab: Lab) -> None:
    preempt(lab)
    for _ in range(3):
        lab.round()
        preemption.drive()
        lab.grace_is_over()
        assert lab.states() == "active active active suspending!"


def test_a_claim_that_its_owner_suspends_counts_as_going_too(lab: Lab) -> None:
    suspend_claim(principal=SYSTEM, claim=lab.borrowed[0])
    lab.wants()
    preemption.drive()
    assert lab.states() == "suspending active active active"


def test_a_claim_that_moves_to_other_gpus_frees_no_room(lab: Lab) -> None:
    suspend_claim(principal=SYSTEM, claim=lab.borrowed[0])
    lab.borrowed[0].assignments.update(other_gpu=lab.machine.gpu(1))
    lab.wants()
    preemption.drive()
    assert lab.states() == "suspending active active active!"


def test_what_cannot_be_suspended_is_preempted_as_ever_and_says_why(cast: Cast) -> None:
    lab = build(cast, host_memory_mib=GIB // 2)
    lab.wants()
    preemption.drive()
    why = "as it cannot be suspended. Host memory of node gpu1 exceeded: requested 1 GiB"
    assert why in fresh(lab.borrowed[3]).reasons[0]["detail"]
    lab.grace_is_over()
    preemption.drive()
    assert lab.states() == "active active active releasing!"
    assert "as it could not be suspended. Host memory of node gpu1" in fresh(lab.borrowed[3]).reasons[0]["detail"]
    lab.machine.obey()
    assert lab.states() == "active active active queued"
    assert_books_agree()


def test_a_quota_of_host_memory_that_is_short_at_the_end_releases_too(lab: Lab) -> None:
    give(lab.cast.globex, host_memory_mib=GIB // 2)
    preempt(lab)
    assert lab.states() == "active active active releasing!"
    assert "quota exceeded" in fresh(lab.borrowed[3]).reasons[0]["detail"]
    assert Node.objects.get().host_memory_used_mib == 0
    lab.machine.obey()
    assert_books_agree()


def test_a_suspension_that_the_node_refuses_ends_in_a_release(lab: Lab) -> None:
    preempt(lab)
    victim = lab.borrowed[3]
    lab.machine.say(seen(victim.assignments.get(), suspend_refused="Process 17 uses managed memory: end it."))
    assert lab.states() == "active active active active!"
    preemption.drive()
    assert lab.states() == "active active active releasing!"
    assert "Process 17 uses managed memory" in fresh(victim).reasons[0]["detail"]
    assert audited(victim).count("suspend") == 1


def test_a_resumption_that_the_node_refuses_is_left_to_the_owner(lab: Lab) -> None:
    nominee = preempt(lab)
    lab.machine.obey()
    victim = lab.borrowed[3]
    release_claim(principal=SYSTEM, claim=nominee)
    preemption.drive()
    lab.round()
    assert fresh(victim).charged["core_percent"] == 100
    lab.machine.say(seen(victim.assignments.get(), "suspended", suspend_refused="No room on GPU 3."))
    assert (fresh(victim).state, victim.reasons[0]["code"]) == ("suspended", "resume-refused")
    lab.round()
    preemption.drive()
    assert fresh(victim).state == "suspended"


def test_a_pool_that_releases_is_as_it_was(lab: Lab) -> None:
    change_pool(principal=SYSTEM, pool=lab.cast.pool, preempt_by="release")
    preempt(lab)
    assert lab.states() == "active active active releasing!"


def test_previews_and_events_say_what_is_going_to_happen(lab: Lab) -> None:
    cast = lab.cast
    hook = {"url": "https://hooks.example.org/x", "events": ["claim.preemption_notice", "claim.preempted"]}
    cast.olga.post("webhooks/", {"tenant": "globex", **hook})
    body = {"tenant": "acme", "core_request": 100, "memory_mib": GIB, "when_over_quota": "wait"}
    said = cast.olga.post("claims/?dry_run=true", body).body["reclaims"]
    assert (said["claims"], said["suspended"]) == (1, 1)
    assert [victim["action"] for victim in said["victims"]] == ["suspend"]
    preempt(lab)
    lab.machine.obey()
    (notice,) = WebhookDelivery.objects.all()
    assert (notice.kind, '"action":"suspend"' in notice.body) == ("claim.preemption_notice", True)


@pytest.mark.django_db(transaction=True)
def test_two_runs_an_agent_and_an_owner_at_once_leave_one_suspension(real_cast: Cast) -> None:
    """Each ends it in another way; whoever comes first, the books agree and one claim at most has gone."""
    lab = build(real_cast)
    lab.wants()
    preemption.drive()
    lab.grace_is_over()
    victim = lab.borrowed[3]
    found = race(
        [preemption.drive] * 4
        + [lab.machine.obey] * 4
        + [partial(suspend_claim, principal=SYSTEM, claim=victim)] * 2
        + [partial(resume_claim, principal=SYSTEM, claim=victim)] * 2
        + [lab.round] * 2
    )
    assert outcomes(found).keys() <= {"int", "Claim", "NoneType", "Round", "WrongState", "list", "bool", "tuple"}
    for _ in range(4):
        lab.machine.obey()
        lab.round()
        preemption.drive()
        lab.grace_is_over()
    assert_books_agree()
    states = Counter(Claim.objects.filter(tenant=real_cast.globex).values_list("state", flat=True))
    assert states["active"] == 3, states


def refuse(claim: Claim, code: str) -> str | None:
    """Find no refusal."""
    return None


def attempts(lab: Lab, runs: int) -> int:
    """Return how often the platform tries to suspend a claim whose node refuses."""
    preempt(lab)
    victim = lab.borrowed[3]
    for _ in range(runs):
        if fresh(victim).state == "suspending":
            lab.machine.say(seen(victim.assignments.get(), suspend_refused="It uses managed memory."))
        lab.grace_is_over()
        preemption.drive()
    return audited(victim).count("suspend")


def test_a_refusal_is_tried_once(lab: Lab) -> None:
    assert attempts(lab, 5) == 1


def test_control_without_a_look_at_the_refusal_it_is_tried_again_and_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspending, "find_refusal", refuse)
    assert attempts(lab, 5) > 3
