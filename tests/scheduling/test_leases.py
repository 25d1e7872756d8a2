"""Leases: a renewed lease keeps its claim, and the lease of a killed client releases it."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.claims import leases
from apps.scheduling.services.claims.lifecycle import release_claim
from tests.cast import Cast, Machine, ask, assert_books_agree, give_plenty, placed, used


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme)
    return Machine("gpu1", cast.pool)


def state_of(claim: Claim) -> str:
    claim.refresh_from_db()
    return str(claim.state)


def age(claim: Claim, *, seconds: int) -> None:
    """Move the last renewal so much into the past."""
    claim.refresh_from_db()
    assert claim.lease_until is not None
    Claim.objects.filter(pk=claim.pk).update(lease_until=claim.lease_until - timedelta(seconds=seconds))


def test_a_lease_that_nobody_renews_releases_a_running_claim(cast: Cast, machine: Machine) -> None:
    lapsing, _ = placed(cast, machine, lease_seconds=60)
    staying, _ = placed(cast, machine, lease_seconds=3600)
    plain, _ = placed(cast, machine)
    age(lapsing, seconds=61)
    assert leases.release_lapsed() == 1
    assert [state_of(claim) for claim in (lapsing, staying, plain)] == ["releasing", "active", "active"]
    machine.obey()
    assert (state_of(lapsing), leases.release_lapsed()) == ("released", 0)
    row = AuditEvent.objects.get(action="claim.release", object_id=str(lapsing.uid))
    assert row.after == {"why": "its lease of 60 s was not renewed"}
    assert_books_agree()


def test_it_counts_in_the_queue_too(cast: Cast, machine: Machine) -> None:
    claim = ask(cast, lease_seconds=60)
    age(claim, seconds=61)
    assert leases.release_lapsed() == 1
    assert state_of(claim) == "released"
    assert not any(used(cast.acme).values())


def test_a_renewal_counts_from_its_own_moment(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine, lease_seconds=60)
    age(claim, seconds=50)
    begun = timezone.now()
    answer = cast.max.post(f"claims/{claim.uid}/renew/", {})
    assert answer.status == 200
    assert answer.headers["ETag"] == f'"{answer.body["version"]}"'
    claim.refresh_from_db()
    assert claim.lease_until is not None
    assert claim.lease_until >= begun + timedelta(seconds=60)
    assert leases.release_lapsed() == 0


def test_a_renewal_between_the_look_and_the_release_wins(
    cast: Cast, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, _ = placed(cast, machine, lease_seconds=60)
    age(claim, seconds=61)

    def renewed_first(**given: Any) -> Claim:
        leases.renew_claim(principal=SYSTEM, claim=claim)
        return release_claim(**given)

    monkeypatch.setattr(leases, "release_claim", renewed_first)
    assert leases.release_lapsed() == 0
    assert state_of(claim) == "active"


def test_only_what_has_a_lease_and_lives_is_renewed(cast: Cast, machine: Machine) -> None:
    plain, _ = placed(cast, machine)
    assert cast.max.post(f"claims/{plain.uid}/renew/", {}).code == "no-lease"
    leased, _ = placed(cast, machine, lease_seconds=60)
    assert cast.max.delete(f"claims/{leased.uid}/").status == 202
    answer = cast.max.post(f"claims/{leased.uid}/renew/", {})
    assert (answer.status, answer.code) == (409, "wrong-state")


def test_a_viewer_does_not_renew(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine, lease_seconds=60)
    assert cast.vera.post(f"claims/{claim.uid}/renew/", {}).status == 403


@pytest.mark.parametrize("seconds", [0, 4, 604_801, "60", True])
def test_a_lease_too_short_or_too_long_is_refused(cast: Cast, machine: Machine, seconds: object) -> None:
    body = {"tenant": "acme", "core_request": 10, "memory_mib": 100, "lease_seconds": seconds}
    answer = cast.max.post("claims/", body)
    assert (answer.status, list(answer.body["errors"])) == (400, ["lease_seconds"])


def test_the_answer_shows_the_lease(cast: Cast, machine: Machine) -> None:
    body = {"tenant": "acme", "core_request": 10, "memory_mib": 100, "lease_seconds": 60}
    answer = cast.max.post("claims/", body).body
    assert answer["lease_seconds"] == 60
    assert answer["lease_until"] > answer["created_at"]
    del body["lease_seconds"]
    answer = cast.max.post("claims/", body).body
    assert (answer["lease_seconds"], answer["lease_until"]) == (None, None)
