"""Suspended claims beside other rules: several GPUs, labels, loans, notices, limits of members, drains, repairs."""

from datetime import timedelta

import pytest
from django.utils import timezone

from apps.accounting.services.ledger_check import differences, repair_all
from apps.nodes.models import Node
from apps.nodes.services.nodes import change_node
from apps.quotas.models import Pool, User
from apps.quotas.principals import SYSTEM
from apps.quotas.services import member_limits
from apps.quotas.services.tenants import InUse, create_pool
from apps.scheduling import tasks
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.cycles.commits import Pick, commit
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.fleet.devices import read_fleet
from apps.scheduling.services.fleet.reserved import read_reserved
from apps.scheduling.services.rebalancing import guarantees
from apps.scheduling.services.reclaiming import draining, failover
from apps.suspension.services import resume_claim, suspend_claim
from tests.cast import GIB, Cast, Machine, ask, assert_books_agree, lose, placed, seen
from tests.scheduling.scrapes import scrape


def suspended(cast: Cast, machine: Machine, **asked: object) -> Claim:
    """Create a claim and suspend it."""
    claim, _ = placed(cast, machine, **asked)
    suspend_claim(principal=SYSTEM, claim=claim)
    machine.obey()
    claim.refresh_from_db()
    assert claim.state == "suspended"
    return claim


def resumed(cast: Cast, machine: Machine, claim: Claim) -> Claim:
    resume_claim(principal=SYSTEM, claim=claim)
    run_round(cast.pool)
    machine.obey()
    claim.refresh_from_db()
    return claim


def test_no_gpu_is_free_before_all_of_the_claims_are(cast: Cast, machine: Machine) -> None:
    claim, first = placed(cast, machine, gpu_count=2, core_request=100)
    suspend_claim(principal=SYSTEM, claim=claim)
    second = claim.assignments.exclude(pk=first.pk).get()
    machine.say(seen(first, "suspended"), seen(second, "suspending"))
    claim.refresh_from_db()
    assert (claim.state, claim.charged["core_percent"], claim.charged["vgpus"]) == ("suspending", 200, 2)
    assert [machine.gpu(0).core_used, machine.gpu(1).core_used] == [100, 100]
    machine.say(seen(first, "suspended"), seen(second, "suspended"))
    claim.refresh_from_db()
    assert (claim.state, claim.charged["core_percent"], claim.charged["vgpus"]) == ("suspended", 0, 0)
    assert [machine.gpu(0).core_used, machine.gpu(1).core_used] == [0, 0]
    assert_books_agree()


def test_a_claim_that_is_half_suspended_can_still_be_refused(cast: Cast, machine: Machine) -> None:
    claim, first = placed(cast, machine, gpu_count=2, core_request=100)
    suspend_claim(principal=SYSTEM, claim=claim)
    second = claim.assignments.exclude(pk=first.pk).get()
    machine.say(seen(first, "suspended"), seen(second, "resuming", suspend_refused="No room in the node's memory."))
    claim.refresh_from_db()
    assert claim.state == "resuming"
    assert not any(one.suspended for one in desired_state(machine.node).assignments)
    run_round(cast.pool)
    machine.obey()
    claim.refresh_from_db()
    assert (claim.state, claim.reasons[0]["code"]) == ("active", "suspend-refused")
    assert claim.charged["host_memory_mib"] == 0
    assert_books_agree()


def test_host_memory_is_free_once_all_of_the_claim_is_in_force(cast: Cast, machine: Machine) -> None:
    claim = suspended(cast, machine, gpu_count=2, core_request=100)
    resume_claim(principal=SYSTEM, claim=claim)
    run_round(cast.pool)
    first, second = claim.assignments.order_by("pk")
    claim.refresh_from_db()
    assert claim.charged["host_memory_mib"] == 16 * GIB
    machine.say(seen(first, "in_force"), seen(second, "resuming"))
    claim.refresh_from_db()
    assert (claim.state, claim.charged["host_memory_mib"]) == ("resuming", 16 * GIB)
    machine.say(seen(first, "in_force"), seen(second, "suspended", suspend_refused="Out of memory on GPU 1."))
    claim.refresh_from_db()
    assert (claim.state, claim.charged["core_percent"]) == ("suspending", 200), "one of its GPUs still runs it"
    machine.obey()
    claim.refresh_from_db()
    assert (claim.state, claim.charged["core_percent"]) == ("suspended", 0)
    assert_books_agree()


def test_all_gpus_but_its_own_are_withheld_where_the_node_cannot_move_programs(cast: Cast, machine: Machine) -> None:
    Node.objects.update(can_move=False)
    claim, other = suspended(cast, machine), suspended(cast, machine)
    for one in (claim, other):
        resume_claim(principal=SYSTEM, claim=one)
        one.refresh_from_db()
    reserved, gpus = read_reserved(cast.pool, now=timezone.now()), read_fleet(cast.pool)
    own = claim.assignments.get().gpu.uuid
    withheld = reserved.withheld_from(claim, lambda: gpus)
    assert withheld == {gpu.uuid: (gpu.core_free, gpu.memory_free_mib) for gpu in gpus if gpu.uuid != own}
    assert not reserved.withheld_from(ask(cast), lambda: gpus)


def test_a_commit_on_a_gpu_on_which_it_cannot_resume_is_lost(cast: Cast, machine: Machine) -> None:
    Node.objects.update(can_move=False)
    claim = suspended(cast, machine)
    resume_claim(principal=SYSTEM, claim=claim)
    claim.refresh_from_db()
    own = claim.assignments.get().gpu
    other = next(machine.gpu(index) for index in range(4) if machine.gpu(index) != own)
    assert [pick.claim for pick in commit([Pick(claim, (other.pk,))], fence=lambda: None).lost] == [claim]
    assert [pick.claim for pick in commit([Pick(claim, (own.pk,))], fence=lambda: None).placed] == [claim]
    assert_books_agree()


def test_a_suspended_claims_label_keeps_nobody_off_and_counts_again_when_it_resumes(
    cast: Cast, machine: Machine
) -> None:
    claim = suspended(cast, machine, exclusion="alone", core_request=10)
    others = [ask(cast, core_request=10, name=f"other-{number}", anti_affinity="spread") for number in range(4)]
    run_round(cast.pool)
    machine.obey()
    assert Assignment.objects.filter(claim__in=others, gpu=claim.assignments.get().gpu).exists()
    assert resumed(cast, machine, claim).state == "resuming"
    assert [reason["code"] for reason in claim.reasons] == ["exclusion"]


def test_a_claim_that_lends_gets_its_core_back_when_it_is_suspended(cast: Cast, machine: Machine) -> None:
    Pool.objects.filter(pk=cast.pool.pk).update(rebalance_mode="apply")
    claim, _ = placed(cast, machine, core_request=50)
    guarantees.lend(principal=SYSTEM, claim=claim, core=40, why="it is idle")
    assert machine.gpu().core_lent == 40
    suspend_claim(principal=SYSTEM, claim=claim)
    assert machine.gpu().core_lent == 0
    machine.obey()
    assert_books_agree()


def test_a_borrower_gives_back_what_it_borrows(cast: Cast, machine: Machine) -> None:
    Machine("small", cast.pool, gpus=1, host_memory_mib=20 * GIB)
    Node.objects.filter(name="gpu1").update(cordoned=True)
    small = Node.objects.get(name="small")
    owner = ask(cast, core_request=100, memory_mib=GIB)
    run_round(cast.pool)
    played = Machine.__new__(Machine)
    played.name, played.node = "small", small
    played.obey()
    guarantees.lend(principal=SYSTEM, claim=owner, core=60, why="it is idle")
    borrower = ask(cast, core_request=30, memory_mib=GIB, best_effort=True)
    run_round(cast.pool)
    played.obey()
    borrower.refresh_from_db()
    assert (borrower.state, borrower.borrowed_core, played.gpu().core_borrowed) == ("active", 30, 30)
    suspend_claim(principal=SYSTEM, claim=borrower)
    assert played.gpu().core_borrowed == 30
    played.obey()
    borrower.refresh_from_db()
    assert (borrower.state, borrower.borrowed_core, played.gpu().core_borrowed) == ("suspended", 0, 0)
    # On lent core it would not be guaranteed its own GPU: it waits for room of its own.
    assert resumed(cast, played, borrower).state == "resuming"
    assert borrower.borrowed_core == 0
    assert_books_agree()


def test_a_suspension_ends_a_preemption_notice(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    Claim.objects.filter(pk=claim.pk).update(preempt_at=timezone.now() + timedelta(minutes=1))
    suspend_claim(principal=SYSTEM, claim=claim)
    machine.obey()
    claim.refresh_from_db()
    assert (claim.state, claim.preempt_at) == ("suspended", None)


def test_the_limit_of_a_member_counts_suspended_claims(cast: Cast, machine: Machine) -> None:
    user = User.objects.get(username="max")
    member_limits.create_limit(principal=SYSTEM, tenant=cast.acme, user=user, resource="host_memory_mib", hard=10 * GIB)
    claims = [placed(cast, machine, principal=cast.member, memory_mib=8 * GIB)[0] for _ in range(2)]
    assert cast.max.post(f"claims/{claims[0].uid}/suspend/").status == 202
    machine.obey()
    answer = cast.max.post(f"claims/{claims[1].uid}/suspend/")
    assert (answer.status, answer.code) == (409, "member-limit-exceeded")


def test_a_drain_says_that_suspended_claims_stay(cast: Cast, machine: Machine) -> None:
    claim = suspended(cast, machine)
    told = draining.plan(Node.objects.get(pk=machine.node.pk))
    assert ([row["claim"] for row in told["stays"]], told["moves"]) == ([claim.uid], [])


def test_failover_leaves_a_suspended_claim_on_its_lost_node(cast: Cast, machine: Machine) -> None:
    Pool.objects.filter(pk=cast.pool.pk).update(failover_policy="requeue", failover_after_seconds=10)
    claim, (other, _) = suspended(cast, machine), placed(cast, machine)
    lose(machine)
    failover.drive()
    claim.refresh_from_db()
    other.refresh_from_db()
    assert (claim.state, other.state) == ("suspended", "queued")
    assert claim.charged["host_memory_mib"] == 8 * GIB
    assert_books_agree()


@pytest.mark.parametrize("state", ["suspending", "resuming"])
def test_an_order_whose_report_was_lost_is_pushed_again(cast: Cast, machine: Machine, state: str) -> None:
    claim, assignment = placed(cast, machine)
    suspend_claim(principal=SYSTEM, claim=claim)
    if state == "resuming":
        machine.obey()
        resume_claim(principal=SYSTEM, claim=claim)
        run_round(cast.pool)
    machine.say(seen(assignment, "suspending" if state == "suspending" else "resuming"))
    Assignment.objects.update(updated_at=timezone.now() - timedelta(seconds=10))
    Node.objects.update(last_seen_at=timezone.now())
    assert Assignment.objects.get().state == state
    assert tasks.repair_pushes() == 1


def test_the_check_of_the_ledger_names_a_node_whose_memory_differs_and_repairs_it(cast: Cast, machine: Machine) -> None:
    suspended(cast, machine)
    assert not differences()
    Node.objects.filter(pk=machine.node.pk).update(host_memory_used_mib=5)
    (found,) = differences()
    assert (found.subject, found.is_now, found.should_be) == ("node gpu1", 5, 8 * GIB)
    repair_all(principal=SYSTEM)
    assert not differences()


def test_a_suspended_claim_costs_no_gpu_hours(cast: Cast, machine: Machine) -> None:
    claim = suspended(cast, machine)
    entries = cast.anna.get("quotas/?tenant=acme&resource=core_percent").body["results"]
    assert [row["used"] for row in entries] == [0]
    assert claim.charged["gpus"] == claim.charged["vgpus"] == 0


def test_a_node_with_a_suspended_claim_stays_in_its_pool_though_nothing_was_saved(cast: Cast, machine: Machine) -> None:
    claim, assignment = placed(cast, machine)
    suspend_claim(principal=SYSTEM, claim=claim)
    machine.say(seen(assignment, "suspended", saved_bytes=0))
    claim.refresh_from_db()
    assert (claim.state, claim.charged["host_memory_mib"], machine.gpu().core_used) == ("suspended", 1, 0)
    other = create_pool(principal=SYSTEM, name="other")
    with pytest.raises(InUse):
        change_node(principal=SYSTEM, node=machine.node, pool=other)
    assert_books_agree()


def test_the_scrape_counts_claims_that_wait_to_resume_and_the_memory_of_nodes(cast: Cast, machine: Machine) -> None:
    claim = suspended(cast, machine, memory_mib=3 * GIB)
    resume_claim(principal=SYSTEM, claim=claim)
    told = scrape(cast.olga)
    assert told.value("gpucloud_queue_claims", pool="default", state="resuming") == 1
    assert told.value("gpucloud_host_memory_mib", pool="default") == 20 * GIB
    assert told.value("gpucloud_host_memory_mib_used", pool="default") == 3 * GIB
