"""Resumptions on other GPUs of the node: own ones first, books at every step, and the way back after a refusal."""

import pytest

from apps.nodes.models import Gpu, Node
from apps.quotas.models import Pool, WebhookDelivery
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.cycles.commits import Pick, commit
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.reclaiming.forgetting import forget_node
from apps.suspension.services import resume_claim, suspend_claim
from tests.cast import GIB, MIB_BYTES, Cast, Machine, ask, assert_books_agree, lose, placed, seen, used

pytestmark = pytest.mark.django_db
WHY = "Process 7 has no device file of GPU-1: it can only stay there."


def suspended(cast: Cast, machine: Machine, **asked: object) -> Claim:
    claim, _ = placed(cast, machine, **{"core_request": 100, **asked})
    suspend_claim(principal=SYSTEM, claim=claim)
    machine.obey(memory_bytes=GIB * MIB_BYTES)
    claim.refresh_from_db()
    assert claim.state == "suspended"
    return claim


def occupy(cast: Cast, machine: Machine, *indexes: int) -> list[Claim]:
    """Let another tenant have these GPUs, whole."""
    Gpu.objects.exclude(index__in=indexes).update(cordoned=True)
    made = [placed(cast, machine, tenant=cast.globex, core_request=100, name=f"other-{at}")[0] for at in indexes]
    Gpu.objects.update(cordoned=False)
    return made


def resume(cast: Cast, claim: Claim) -> list[int]:
    """Resume it, run a round, and return the indexes of the GPUs on which it is granted or waits."""
    resume_claim(principal=SYSTEM, claim=claim)
    run_round(cast.pool)
    return indexes(claim)


def indexes(claim: Claim) -> list[int]:
    claim.refresh_from_db()
    return list(claim.assignments.order_by("pk").values_list("gpu__index", flat=True))


def core(machine: Machine) -> list[int]:
    return list(Gpu.objects.filter(node=machine.node).order_by("index").values_list("core_used", flat=True))


def test_a_claim_whose_gpu_is_taken_resumes_on_another(cast: Cast, machine: Machine) -> None:
    claim = suspended(cast, machine)
    occupy(cast, machine, 0)
    assert resume(cast, claim) == [1]
    assert core(machine) == [100, 100, 0, 0]
    assert claim.charged["core_percent"] == 100
    (order,) = [one for one in desired_state(machine.node).assignments if one.claim_uid == str(claim.uid)]
    assert (order.suspended, order.gpu_uuid) == (False, machine.gpu(1).uuid)
    assert_books_agree()
    machine.obey()
    assert indexes(claim) == [1]
    assert (claim.state, claim.reasons, claim.charged["host_memory_mib"]) == ("active", [], 0)
    assert claim.assignments.get().return_gpu is None
    assert core(machine) == [100, 100, 0, 0]
    assert_books_agree()


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_its_own_gpu_comes_first_whatever_the_policy(cast: Cast, machine: Machine, policy: str) -> None:
    """`binpack` would choose GPU 1, which is used, and `spread` GPU 2, as GPU 0 is used a little."""
    Pool.objects.update(placement_policy=policy)
    cast.pool.refresh_from_db()
    claim = suspended(cast, machine, core_request=50)
    Gpu.objects.exclude(index=1).update(cordoned=True)
    placed(cast, machine, tenant=cast.globex, core_request=50)
    Gpu.objects.update(cordoned=False)
    if policy == "spread":
        Gpu.objects.exclude(index=0).update(cordoned=True)
        placed(cast, machine, tenant=cast.globex, core_request=10, name="little")
        Gpu.objects.update(cordoned=False)
    body = cast.max.post(f"claims/{claim.uid}/resume/?dry_run=true").body
    assert body["gpus"] == [machine.gpu(0).uuid]
    assert resume(cast, claim) == [0]


def test_of_two_gpus_the_one_that_is_free_is_kept(cast: Cast, machine: Machine) -> None:
    claim = suspended(cast, machine, gpu_count=2)
    occupy(cast, machine, 0)
    assert resume(cast, claim) == [2, 1]
    machine.obey()
    assert indexes(claim) == [2, 1]
    assert claim.state == "active"
    assert core(machine) == [100, 100, 100, 0]
    assert_books_agree()


def test_a_preview_shows_where_it_would_be(cast: Cast, machine: Machine) -> None:
    claim = suspended(cast, machine)
    occupy(cast, machine, 0)
    body = cast.max.post(f"claims/{claim.uid}/resume/?dry_run=true").body
    assert (body["gpus"], body["reasons"]) == ([machine.gpu(1).uuid], [])
    assert indexes(claim) == [0]


def test_a_refusal_there_lets_it_wait_for_its_own(cast: Cast, machine: Machine) -> None:
    events = ["claim.suspend_failed", "claim.resumed"]
    claim = suspended(cast, machine)
    cast.anna.post("webhooks/", {"tenant": "acme", "url": "https://hooks.example.org/x", "events": events})
    (other,) = occupy(cast, machine, 0)
    assert resume(cast, claim) == [1]
    assignment = claim.assignments.get()
    # A call that hangs is tried again by the agent: some programs may be there already.
    machine.say(seen(assignment, "resuming", suspend_refused="cuCheckpointProcessRestore has not returned."))
    assert indexes(claim) == [1]
    machine.say(seen(assignment, "suspended", suspend_refused=WHY))
    assert indexes(claim) == [0]
    assert (claim.state, claim.waits_to_resume) == ("resuming", True)
    assert (claim.reasons[0]["code"], claim.reasons[0]["detail"]) == ("move-refused", WHY)
    assert core(machine) == [100, 0, 0, 0]
    assert used(cast.acme)["core_percent"] == 0
    assert_books_agree()
    # Nothing else will do from now on, also after its next suspension.
    run_round(cast.pool)
    machine.obey()
    assert (claim.state, indexes(claim)) == ("resuming", [0])
    release_claim(principal=SYSTEM, claim=other)
    machine.obey()
    run_round(cast.pool)
    machine.obey()
    assert (indexes(claim), claim.state) == ([0], "active")
    assert list(WebhookDelivery.objects.order_by("pk").values_list("kind", flat=True)) == events
    suspend_claim(principal=SYSTEM, claim=claim)
    machine.obey()
    occupy(cast, machine, 0)
    assert resume(cast, claim) == [0]
    assert claim.waits_to_resume
    assert_books_agree()


def test_one_of_two_gpus_that_stays_does_not_answer_for_the_other(cast: Cast, machine: Machine) -> None:
    """The call hangs on the GPU that is new to it; the report of the one that stays has the same words."""
    claim = suspended(cast, machine, gpu_count=2)
    occupy(cast, machine, 0)
    resume(cast, claim)
    first, second = claim.assignments.order_by("pk")
    words = "cuCheckpointProcessRestore has not returned."
    machine.say(seen(first, "resuming", suspend_refused=words), seen(second, "resuming", suspend_refused=words))
    assert indexes(claim) == [2, 1]
    machine.say(seen(first, "suspended", suspend_refused=WHY), seen(second, "suspended", suspend_refused=WHY))
    assert indexes(claim) == [0, 1]
    assert claim.waits_to_resume
    assert core(machine) == [100, 0, 0, 0]
    assert_books_agree()


@pytest.mark.parametrize("facts", [{"model": "Other"}, {"present": False}, {"cordoned": True}])
def test_gpus_that_will_not_do_are_left_alone(cast: Cast, machine: Machine, facts: dict[str, object]) -> None:
    claim = suspended(cast, machine)
    occupy(cast, machine, 0)
    Machine("gpu2", cast.pool, host_memory_mib=20 * GIB).stay_online()
    Gpu.objects.filter(node=machine.node).exclude(index=0).update(**facts)
    assert resume(cast, claim) == [0]
    assert claim.waits_to_resume
    if "cordoned" not in facts:
        # Nor would a commit that comes late take it.
        for gpu in (machine.gpu(1), Gpu.objects.filter(node__name="gpu2").first()):
            assert gpu is not None
            assert commit([Pick(claim, (gpu.pk,))], fence=lambda: None).lost
    assert_books_agree()


def test_a_claim_suspended_for_a_lender_comes_back_beside_it(cast: Cast, machine: Machine) -> None:
    """The order by which it was suspended makes no difference."""
    claim = suspended(cast, machine)
    Claim.objects.update(suspended_by="reclaim")
    occupy(cast, machine, 0, 1, 2)
    resume_claim(principal=SYSTEM, claim=claim, by="reclaim")
    run_round(cast.pool)
    machine.obey()
    assert (indexes(claim), claim.state) == ([3], "active")


@pytest.mark.parametrize("end", ["release", "forget"])
def test_an_end_on_the_way_gives_everything_back(cast: Cast, machine: Machine, end: str) -> None:
    claim = suspended(cast, machine)
    occupy(cast, machine, 0)
    assert resume(cast, claim) == [1]
    if end == "release":
        release_claim(principal=SYSTEM, claim=claim)
        machine.obey()
        assert core(machine) == [100, 0, 0, 0]
    else:
        lose(machine)
        forget_node(principal=SYSTEM, node=Node.objects.get(pk=machine.node.pk))
    claim.refresh_from_db()
    assert claim.state == "released"
    assert set(used(cast.acme).values()) == {0}
    assert not Assignment.objects.filter(claim=claim).live().exists()
    assert_books_agree()


def test_what_is_granted_elsewhere_and_what_waits_there_fit_together(cast: Cast, machine: Machine) -> None:
    """Three wait for one GPU, with two others free: each gets one, and none is promised twice."""
    claims = [suspended(cast, machine, name=f"c{at}") for at in range(3)]
    assert {indexes(claim)[0] for claim in claims} == {0}
    occupy(cast, machine, 3)
    for claim in claims:
        resume_claim(principal=SYSTEM, claim=claim)
    new = ask(cast, core_request=100, name="new")
    run_round(cast.pool)
    machine.obey()
    assert sorted(indexes(claim)[0] for claim in claims) == [0, 1, 2]
    new.refresh_from_db()
    assert new.state == "queued"
    assert_books_agree()
