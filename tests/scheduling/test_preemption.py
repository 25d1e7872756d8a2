"""Preemption: borrowers' claims return to the queue after a notice when a lender needs its quota, and no others do."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.utils import timezone

from apps.nodes.models import Node
from apps.quotas.models import AuditEvent, CohortShare, Tenant
from apps.quotas.principals import SYSTEM
from apps.quotas.services.tenants import change_tenant
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.reclaiming import preemption, reclaim
from apps.scheduling.services.reclaiming.reclaim import asking, plans
from tests.cast import GIB, Cast, Machine, ask, assert_books_agree, give, placed, used
from tests.racing import race
from tests.scheduling.routes import dump_database


@dataclass
class Lab:
    """A lab in which acme lends all it has to globex: four GPUs, two for each by quota."""

    cast: Cast
    machine: Machine
    borrowed: list[Claim]

    def wants(self, core: int = 100, *, tenant: Tenant | None = None, **facts: Any) -> Claim:
        facts = {"memory_mib": GIB, "when_over_quota": "wait", **facts}
        claim = ask(self.cast, tenant=tenant or self.cast.acme, core_request=core, name="wants", **facts)
        self.round()
        return claim

    def round(self) -> None:
        """Run a round, with live nodes."""
        Node.objects.update(last_seen_at=timezone.now())
        run_round(self.cast.pool)

    def states(self) -> str:
        """Return the initials of the borrowed claims' states."""
        rows = Claim.objects.filter(pk__in=[claim.pk for claim in self.borrowed]).order_by("pk")
        return " ".join(f"{claim.state}{'!' * (claim.preempt_at is not None)}" for claim in rows)

    def grace_is_over(self) -> None:
        # On a busy machine so many cycles take longer than a node may be silent.
        Node.objects.update(last_seen_at=timezone.now())
        Claim.objects.filter(preempt_at__isnull=False).update(preempt_at=timezone.now())


def build(cast: Cast) -> Lab:
    for tenant in (cast.acme, cast.globex):
        change_tenant(principal=SYSTEM, tenant=tenant, cohort="lab")
        tenant.refresh_from_db()
        give(tenant, core_percent=200, memory_mib=None)
    machine = Machine("gpu1", cast.pool)
    sizes = {"tenant": cast.globex, "core_request": 100, "memory_mib": GIB}
    borrowed = [placed(cast, machine, **sizes)[0] for _ in range(4)]
    return Lab(cast, machine, borrowed)


@pytest.fixture
def lab(cast: Cast) -> Lab:
    return build(cast)


@pytest.fixture
def real_lab(real_cast: Cast) -> Lab:
    return build(real_cast)


def fresh(claim: Claim) -> Claim:
    claim.refresh_from_db()
    return claim


def audited(claim: Claim) -> list[str]:
    rows = AuditEvent.objects.filter(object_type="claim", object_id=str(claim.uid)).order_by("pk")
    return [row.action.removeprefix("claim.") for row in rows if row.action not in ("claim.create", "claim.assign")]


def test_who_lent_gets_it_back_after_the_grace_and_who_borrowed_waits_again(lab: Lab) -> None:
    claim = lab.wants()
    assert (fresh(claim).state, any(claim.charged.values())) == ("queued", False)
    preemption.drive()
    victim = fresh(lab.borrowed[3])
    assert lab.states() == "active active active active!"
    assert victim.preempt_at is not None
    assert timedelta(seconds=25) < victim.preempt_at - timezone.now() <= timedelta(seconds=30)
    assert "Acme" not in str(victim.reasons)
    assert victim.reasons[0]["code"] == "reclaimed"
    assert preemption.drive() == 0

    lab.grace_is_over()
    preemption.drive()
    assert lab.states() == "active active active releasing!"
    assert used(lab.cast.globex)["core_percent"] == 400  # nothing is released before the agent has confirmed
    lab.machine.obey()
    assert lab.states() == "active active active queued"
    assert used(lab.cast.globex)["core_percent"] == 300
    assert_books_agree()

    lab.round()
    lab.machine.obey()
    assert fresh(claim).state == "active"
    assert lab.states() == "active active active queued"
    preemption.drive()
    assert fresh(claim).nominated_gpus is None
    assert not CohortShare.objects.filter(reclaimed_until__isnull=False).exists()
    assert audited(victim) == ["notice", "preempt"]
    assert_books_agree()


def test_preempted_claims_that_wait_again_do_not_crowd_a_lender_out(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reclaim, "MOST_ASKING", 1)
    # They are older than the lender's claim.
    for _ in range(2):
        lab.wants(tenant=lab.cast.globex)
    claim = lab.wants()
    assert asking(lab.cast.pool, now=timezone.now()) == [claim]
    preemption.drive()
    assert lab.states() == "active active active active!"


def test_a_preempted_claim_runs_again_when_there_is_room_and_is_released_like_any(lab: Lab) -> None:
    claim = lab.wants()
    victim = lab.borrowed[3]
    for _ in range(2):
        preemption.drive()
        lab.grace_is_over()
    lab.machine.obey()
    lab.round()
    lab.machine.obey()
    release_claim(principal=SYSTEM, claim=claim)
    lab.machine.obey()
    preemption.drive()
    lab.round()
    assert fresh(victim).state == "assigned"
    lab.machine.obey()
    assert [state for state, _ in fresh(victim).timeline][-4:] == ["releasing", "queued", "assigned", "active"]
    resize_claim(principal=SYSTEM, claim=victim, changes=ClaimChanges(core_request=50))
    lab.machine.obey()
    assert_books_agree()
    release_claim(principal=SYSTEM, claim=victim)
    lab.machine.obey()
    assert fresh(victim).state == "released"
    assert_books_agree()


def test_at_once_where_the_pool_gives_no_grace_and_never_where_it_says_so(lab: Lab) -> None:
    lab.wants()
    change_pool(principal=SYSTEM, pool=lab.cast.pool, preemption_grace_seconds=None)
    assert preemption.drive() == 0
    change_pool(principal=SYSTEM, pool=lab.cast.pool, preemption_grace_seconds=0)
    preemption.drive()
    assert lab.states() == "active active active releasing!"


def test_gpus_held_by_who_borrows_are_taken_back_for_a_claim_that_is_charged(lab: Lab) -> None:
    release_claim(principal=SYSTEM, claim=lab.borrowed[0])
    lab.machine.obey()
    claim = lab.wants(50, gpu_count=2)
    assert any(fresh(claim).charged.values())
    assert claim.reasons[0]["code"] != "quota-exceeded"
    preemption.drive()
    assert [state.count("!") for state in lab.states().split()] == [0, 0, 0, 1]


def test_nobody_within_nominal_is_told_though_somebody_waits(lab: Lab) -> None:
    for claim in lab.borrowed[2:]:
        release_claim(principal=SYSTEM, claim=claim)
    lab.machine.obey()
    for _ in range(3):
        lab.wants()
    assert used(lab.cast.acme)["core_percent"] == 200
    preemption.drive()
    assert "!" not in lab.states()


def test_who_would_borrow_itself_reclaims_nothing(lab: Lab) -> None:
    lab.wants(100, gpu_count=3)
    assert preemption.drive() == 0


@pytest.mark.parametrize("why", ["deleted", "room"])
def test_victims_are_spared_when_the_need_has_gone(lab: Lab, why: str) -> None:
    claim = lab.wants()
    preemption.drive()
    if why == "deleted":
        release_claim(principal=SYSTEM, claim=claim)
    else:
        release_claim(principal=SYSTEM, claim=lab.borrowed[0])
        lab.machine.obey()
    lab.grace_is_over()
    preemption.drive()
    victim = fresh(lab.borrowed[3])
    assert (victim.state, victim.preempt_at, victim.reasons) == ("active", None, [])
    assert audited(victim) == ["notice", "spared"]


def test_nobody_else_takes_the_room_that_is_made(lab: Lab) -> None:
    """Neither another borrower, nor a charged claim that waits for GPUs only."""
    claim = lab.wants()
    preemption.drive()
    lab.grace_is_over()
    preemption.drive()
    other = lab.wants(100, priority=500, tenant=lab.cast.globex)
    lab.machine.obey()
    assert not any(fresh(other).charged.values())
    lab.round()
    assert (fresh(claim).state, fresh(other).state) == ("assigned", "queued")


def test_without_the_gate_who_borrows_takes_it_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    monkeypatch.setattr(preemption, "BORROWING_STOPS", timedelta(0))
    monkeypatch.setattr("apps.scheduling.services.fleet.reserved._nominated", lambda pool: {})
    claim = lab.wants()
    preemption.drive()
    lab.grace_is_over()
    preemption.drive()
    other = lab.wants(100, priority=500, tenant=lab.cast.globex)
    lab.machine.obey()
    lab.round()
    assert (fresh(claim).state, fresh(other).state) == ("queued", "assigned")


def test_what_only_waits_and_is_charged_goes_first_and_at_once(lab: Lab) -> None:
    release_claim(principal=SYSTEM, claim=lab.borrowed[0])
    lab.machine.obey()
    waits = ask(
        lab.cast, tenant=lab.cast.globex, core_request=100, memory_mib=GIB, start_at=timezone.now() + timedelta(hours=1)
    )
    assert any(waits.charged.values())
    lab.wants()
    preemption.drive()
    assert "!" not in lab.states()
    assert (fresh(waits).state, any(waits.charged.values())) == ("queued", False)
    assert_books_agree()


@pytest.mark.slow
def test_a_turn_that_is_cut_off_anywhere_is_made_good_by_the_next(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill it before each of its steps in turn."""
    claim = lab.wants()
    steps = ("_nominate", "_tell", "_preempt", "_spare", "_forget", "_let_borrow")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for _ in range(3):
        for name in steps:
            with monkeypatch.context() as patch:
                patch.setattr(preemption, name, killed)
                with suppress(KeyboardInterrupt):
                    preemption.drive()
        preemption.drive()
        lab.grace_is_over()
        lab.machine.obey()
        lab.round()
    assert fresh(claim).state == "active"
    assert lab.states() == "active active active queued"
    assert_books_agree()


def test_the_owner_of_a_claim_that_is_being_preempted_may_end_it(lab: Lab) -> None:
    lab.wants()
    for _ in range(2):
        preemption.drive()
        lab.grace_is_over()
    victim = lab.borrowed[3]
    assert fresh(victim).state == "releasing"
    release_claim(principal=SYSTEM, claim=victim)
    lab.machine.obey()
    assert fresh(victim).state == "released"


def test_a_dry_run_says_who_would_have_to_go(lab: Lab) -> None:
    body = {"tenant": "acme", "core_request": 100, "memory_mib": GIB, "when_over_quota": "wait", "name": "wants"}
    before = dump_database()
    said = lab.cast.anna.post("claims/?dry_run=true", body).body["reclaims"]
    assert {
        "claims": 1,
        "tenants": 1,
        "core_percent": 100,
        "memory_mib": GIB,
        "grace_seconds": 30,
    }.items() <= said.items()
    assert said["victims"] == []  # they are another tenant's
    seen = lab.cast.olga.post("claims/?dry_run=true", body).body["reclaims"]["victims"]
    assert [(row["tenant"], row["uid"]) for row in seen] == [("globex", str(lab.borrowed[3].uid))]
    small = {**body, "core_request": 10, "tenant": "globex"}
    assert lab.cast.gus.post("claims/?dry_run=true", small).body["reclaims"] is None
    assert dump_database() == before


def test_a_claim_shows_when_it_is_preempted_to_its_own_and_to_nobody_else(lab: Lab) -> None:
    lab.wants()
    preemption.drive()
    path = f"claims/{lab.borrowed[3].uid}/"
    assert lab.cast.gus.get(path).body["preempt_at"] is not None
    assert lab.cast.anna.get(path).status == 404


# Races

real = pytest.mark.django_db(transaction=True)


@real
@pytest.mark.parametrize("number", range(2))
def test_a_victim_that_its_owner_releases_meanwhile_is_released_once(real_lab: Lab, number: int) -> None:
    lab = real_lab
    lab.wants()
    preemption.drive()
    lab.grace_is_over()
    victim = lab.borrowed[3]
    racers: list[Callable[[], object]] = [preemption.drive, partial(release_claim, principal=SYSTEM, claim=victim)]
    results = race(racers[:: 1 if number % 2 else -1])
    assert not [result for result in results if isinstance(result, Exception)]
    lab.machine.obey()
    assert fresh(victim).state == "released"
    assert used(lab.cast.globex)["core_percent"] == 300
    assert_books_agree()


def nobody_is_preempted_for_who_has_gone(lab: Lab) -> bool:
    """Release the nominee between the decision and the act."""
    claim = lab.wants()
    preemption.drive()
    lab.grace_is_over()
    (plan,) = plans(lab.cast.pool, asking(lab.cast.pool, now=timezone.now()))
    release_claim(principal=SYSTEM, claim=claim)
    preemption._preempt(plan.victims[0], plan.claim)
    return fresh(lab.borrowed[3]).state == "active"


@real
def test_nobody_goes_for_who_has_gone_meanwhile(real_lab: Lab) -> None:
    assert nobody_is_preempted_for_who_has_gone(real_lab)
    preemption.drive()
    assert "!" not in real_lab.states()


@real
def test_somebody_would_without_a_look_at_the_nominee_under_its_lock(
    real_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: acting on the earlier decision preempts a claim for nothing."""

    def unlocked(*claims: Claim) -> dict[int, Claim]:
        return {claim.pk: claim for claim in claims}

    lab = real_lab
    claim = lab.wants()
    preemption.drive()
    lab.grace_is_over()
    (plan,) = plans(lab.cast.pool, asking(lab.cast.pool, now=timezone.now()))
    release_claim(principal=SYSTEM, claim=claim)
    monkeypatch.setattr(preemption, "_locked", unlocked)
    preemption._preempt(plan.victims[0], plan.claim)
    assert fresh(lab.borrowed[3]).state == "releasing"


@real
@pytest.mark.parametrize("number", range(2))
def test_a_nominee_that_is_released_while_its_victims_go(real_lab: Lab, number: int) -> None:
    lab = real_lab
    claim = lab.wants()
    preemption.drive()
    lab.grace_is_over()
    racers: list[Callable[[], object]] = [preemption.drive, partial(release_claim, principal=SYSTEM, claim=claim)]
    results = race(racers[:: 1 if number % 2 else -1])
    assert not [result for result in results if isinstance(result, Exception)]
    preemption.drive()
    lab.machine.obey()
    lab.round()
    lab.machine.obey()
    assert lab.states() == "active active active active"
    assert fresh(claim).nominated_gpus is None
    assert_books_agree()
