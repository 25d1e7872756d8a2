"""Quotas that count MIG instances of a profile, beside core and memory."""

from typing import Any

import pytest

from apps.accounting.services import ledger_check
from apps.instances import seats
from apps.quotas.models import LedgerEntry, Membership, ResourceQuota
from apps.quotas.principals import SYSTEM
from apps.quotas.services import member_limits
from apps.scheduling.services.charging.states import charged_by_users
from apps.scheduling.services.claims.lifecycle import end_assignments, release_claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Cast, Machine, ask, assert_books_agree, give_plenty, used
from tests.instances.test_seats import inside, opened
from tests.racing import outcomes, race
from tests.scheduling.test_isolation import divided, hard, outlive_grace, refused

SMALL = "mig/1g.18gb"


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme)
    return divided(cast)


def limit(cast: Cast, hard: int | None, resource: str = SMALL) -> int:
    """Create a quota by the API; return its id."""
    answer = cast.olga.post("quotas/", {"tenant": "acme", "resource": resource, "hard": hard})
    assert answer.status == 201, answer.body
    return int(answer.body["id"])


def is_sound() -> bool:
    assert_books_agree()
    return not ledger_check.differences()


def test_more_of_them_is_asked_for_and_granted_as_of_any_quota(cast: Cast, machine: Machine) -> None:
    asked = {"tenant": "acme", "resource": SMALL, "amount": 2, "reason": "a course"}
    # Unlimited by number as yet.
    assert cast.anna.post("quota-requests/", asked).code == "not-limited"
    limit(cast, 1)
    uid = cast.anna.post("quota-requests/", asked).body["uid"]
    assert cast.olga.get(f"quota-requests/{uid}/").body["preview"] is not None
    assert cast.olga.post(f"quota-requests/{uid}/approve/", {}).status == 200
    assert ResourceQuota.objects.get(resource=SMALL).hard == 3
    assert cast.anna.get(f"quota-requests/?resource={SMALL}").body["results"][0]["granted_amount"] == 2
    assert is_sound()


@pytest.mark.parametrize("resource", ["mig/large", "mig/1g.18gb+me", "mig/", "gpu", "1g.18gb"])
def test_what_is_no_resource_cannot_be_asked_for(cast: Cast, resource: str) -> None:
    answer = cast.anna.post("quota-requests/", {"tenant": "acme", "resource": resource, "amount": 1, "reason": "x"})
    assert answer.status == 400
    assert "or mig/PROFILE, such as mig/2g.35gb, or gpu_hours." in answer.body["errors"]["resource"][0]


def test_a_claim_counts_once_against_its_profile_until_it_is_released(cast: Cast, machine: Machine) -> None:
    limit(cast, 1)
    first = hard(cast, profile="1g.18gb")
    assert used(cast.acme)[SMALL] == 1
    status, code, detail = refused(cast, profile="1g.18gb")
    assert (status, code) == (409, "quota-exceeded")
    assert detail == "1g.18gb instance quota exceeded: requested 1, 0 of 1 available"
    # Another profile is not limited by it.
    hard(cast, profile="2g.35gb")
    run_round(cast.pool)
    machine.obey()
    assert used(cast.acme)[SMALL] == 1
    assert is_sound()
    release_claim(principal=SYSTEM, claim=first)
    assert used(cast.acme)[SMALL] == 1, "the agent has not removed the instance yet"
    machine.obey()
    assert used(cast.acme)[SMALL] == 0
    assert is_sound()
    amounts = LedgerEntry.objects.filter(resource=SMALL).order_by("pk").values_list("kind", "amount")
    assert list(amounts) == [("set", 0), ("charge", 1), ("refund", -1)]


def test_a_claim_that_waits_for_such_a_quota_starts_when_it_has_room(cast: Cast, machine: Machine) -> None:
    limit(cast, 1)
    first = hard(cast, profile="1g.18gb")
    waits = hard(cast, profile="1g.18gb", when_over_quota="wait")
    run_round(cast.pool)
    machine.obey()
    waits.refresh_from_db()
    assert (waits.state, waits.reasons[0]["code"]) == ("queued", "quota-exceeded")
    release_claim(principal=SYSTEM, claim=first)
    machine.obey()
    run_round(cast.pool)
    waits.refresh_from_db()
    assert waits.state == "assigned"
    assert is_sound()


def test_a_quota_made_later_counts_the_instances_that_are_there(cast: Cast, machine: Machine) -> None:
    opener = opened(cast, machine)
    inside(cast, opener)
    hard(cast, profile="3g.71gb")
    quota = limit(cast, 1, "mig/3g.71gb")
    row = ResourceQuota.objects.get(pk=quota)
    assert (row.used, row.excess) == (2, 1), "the claim inside has no instance of its own"
    assert is_sound()


def test_a_claim_that_goes_back_to_the_queue_is_charged_again_with_its_next_instance(
    cast: Cast, machine: Machine
) -> None:
    limit(cast, 1, "mig/3g.71gb")
    opener = opened(cast, machine)
    end_assignments(opener, preempt_at=opener.created_at)
    machine.obey()
    assert used(cast.acme)["mig/3g.71gb"] == 0
    run_round(cast.pool)
    seats.drive()
    machine.obey()
    assert used(cast.acme)["mig/3g.71gb"] == 1
    assert is_sound()


@pytest.mark.django_db(transaction=True)
def test_claims_that_race_never_pass_it(real_cast: Cast) -> None:
    give_plenty(real_cast.acme)
    divided(real_cast)
    limit(real_cast, 2)
    answers = race([lambda: real_cast.max.post("claims/", {"tenant": "acme", "profile": "1g.18gb"}).status] * 6)
    assert sorted(answers) == [201, 201, 409, 409, 409, 409], outcomes(answers)
    assert is_sound()


@pytest.mark.parametrize("resource", ["mig/", "mig/large", "mig/1g.18gb+me", "MIG/1g.18gb", "gpu"])
def test_what_is_no_resource_is_refused_with_those_that_are(cast: Cast, resource: str) -> None:
    body: dict[str, Any] = {"tenant": "acme", "resource": resource, "hard": 1}
    answer = cast.olga.post("quotas/", body)
    assert answer.status == 400
    (said,) = answer.body["errors"]["resource"]
    assert said.startswith("Must be one of core_percent, memory_mib, vgpus, gpus, host_memory_mib, or mig/PROFILE")


def test_such_quotas_are_listed_by_resource_and_changed(cast: Cast, machine: Machine) -> None:
    quota = limit(cast, 1)
    listed = cast.olga.get("quotas/?resource=mig/1g.18gb").body["results"]
    assert [(one["resource"], one["hard"], one["free"]) for one in listed] == [(SMALL, 1, 1)]
    assert cast.olga.patch(f"quotas/{quota}/", {"hard": 3}, If_Match="*").body["hard"] == 3
    claim = hard(cast, profile="1g.18gb")
    assert cast.olga.delete(f"quotas/{quota}/", If_Match="*").status == 409
    release_claim(principal=SYSTEM, claim=claim)
    assert cast.olga.delete(f"quotas/{quota}/", If_Match="*").status == 204


def test_preemption_goes_by_the_quotas_that_a_claim_is_charged_to(cast: Cast, machine: Machine) -> None:
    limit(cast, 1)
    change_pool(principal=SYSTEM, pool=cast.pool, preempt_by_priority=True)
    low, _ = hard(cast, profile="1g.18gb", priority=-1), ask(cast, core_request=100, memory_mib=1024, priority=-1)
    run_round(cast.pool)
    machine.obey()
    urgent = hard(cast, profile="1g.18gb", priority=5, when_over_quota="wait")
    whole = ask(cast, core_request=100, memory_mib=1024, priority=5)
    outlive_grace(cast, machine)
    for claim in (low, urgent, whole):
        claim.refresh_from_db()
    assert (low.state, urgent.state, whole.state) == ("queued", "active", "active")
    assert is_sound()


def bound(cast: Cast, hard: int | None, *, member: str | None = "max", resource: str = SMALL) -> Any:
    body = {"tenant": "acme", "member": member, "resource": resource, "hard": hard}
    return cast.anna.post("member-limits/", body)


def test_a_member_has_no_more_instances_than_its_limit(cast: Cast, machine: Machine) -> None:
    made = bound(cast, 1)
    assert (made.status, made.body["resource"]) == (201, SMALL)
    first = hard(cast, profile="1g.18gb")
    status, code, detail = refused(cast, profile="1g.18gb")
    assert (status, code) == (409, "member-limit-exceeded")
    assert "1g.18gb" in detail
    # Another profile, and another member, are not bound by it.
    hard(cast, profile="2g.35gb")
    assert cast.anna.post("claims/", {"tenant": "acme", "profile": "1g.18gb"}).status == 201
    waits = hard(cast, profile="1g.18gb", when_over_quota="wait")
    run_round(cast.pool)
    machine.obey()
    waits.refresh_from_db()
    assert (waits.state, waits.reasons[0]["code"]) == ("queued", "member-limit-exceeded")
    release_claim(principal=SYSTEM, claim=first)
    machine.obey()
    run_round(cast.pool)
    waits.refresh_from_db()
    assert waits.state == "assigned"
    assert is_sound()


def test_an_instance_counts_once_to_the_member_who_opened_it(cast: Cast, machine: Machine) -> None:
    assert bound(cast, 1, member=None, resource="mig/3g.71gb").status == 201
    opener = opened(cast, machine)
    for _ in range(2):
        inside(cast, opener, core=5, memory_mib=1024)
    body = {"tenant": "acme", "instance_of": str(opener.uid), "core_request": 5, "memory_mib": 1024}
    assert cast.anna.post("claims/", body).body["state"] == "assigned"
    members = {
        row.user_id: amounts
        for row in Membership.objects.all()
        if (amounts := charged_by_users(cast.acme).get(row.user_id))
    }
    assert [amounts["mig/3g.71gb"] for amounts in members.values() if amounts["mig/3g.71gb"]] == [1]
    assert cast.anna.post("claims/", {"tenant": "acme", "profile": "3g.71gb"}).status == 201, "anna has opened none"
    assert used(cast.acme)["core_percent"] == 84
    assert is_sound()


def claimed_by_one_member(cast: Cast) -> int:
    give_plenty(cast.acme)
    divided(cast)
    assert bound(cast, 2).status == 201
    answers = race([lambda: cast.max.post("claims/", {"tenant": "acme", "profile": "1g.18gb"}).status] * 6)
    assert set(answers) <= {201, 409}, outcomes(answers)
    return answers.count(201)


@pytest.mark.django_db(transaction=True)
def test_claims_of_one_member_that_race_never_pass_its_limit(real_cast: Cast) -> None:
    assert claimed_by_one_member(real_cast) == 2
    assert is_sound()


@pytest.mark.django_db(transaction=True)
def test_control_without_the_memberships_lock_a_member_gets_more(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        member_limits, "lock", lambda tenant, user_id, resources: {SMALL: 2} if SMALL in resources else {}
    )
    assert claimed_by_one_member(real_cast) > 2


@pytest.mark.parametrize("resource", ["mig/", "mig/large", "gpu"])
def test_a_members_limit_of_no_resource_is_refused_with_those_that_are(cast: Cast, resource: str) -> None:
    answer = bound(cast, 1, resource=resource)
    assert answer.status == 400
    assert "or mig/PROFILE, such as mig/2g.35gb" in answer.body["errors"]["resource"][0]
