"""The check that ledger, claims and used amounts agree, and its repair."""

import io
import logging

import pytest
from django.core.management import CommandError, call_command

from apps.accounting.services.ledger_check import differences
from apps.accounting.tasks import check_ledger as nightly
from apps.quotas.models import AuditEvent, CohortShare, LedgerEntry, ResourceQuota
from apps.quotas.principals import SYSTEM
from apps.quotas.services import tenants
from apps.scheduling.models import Claim
from tests.cast import Cast, Machine, ask, assert_books_agree, give, placed


@pytest.fixture
def machine(cast: Cast) -> Machine:
    return Machine("gpu1", cast.pool)


@pytest.fixture
def claim(cast: Cast, machine: Machine) -> Claim:
    """Create a claim of 40 percent; acme has 30, so 10 are borrowed of globex."""
    for tenant in (cast.acme, cast.globex):
        tenants.change_tenant(principal=SYSTEM, tenant=tenant, cohort="ml")
        give(tenant, core_percent=30, memory_mib=None)
    give(cast.acme, pool=cast.pool, core_percent=100)
    return placed(cast, machine, core_request=40, memory_mib=100)[0]


def check(*options: str) -> str:
    out = io.StringIO()
    call_command("check_ledger", *options, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def overall() -> ResourceQuota:
    return ResourceQuota.objects.get(tenant__slug="acme", pool=None, resource="core_percent")


def test_a_sound_platform_has_nothing_to_say(claim: Claim) -> None:
    assert overall().borrowed == 10
    assert check() == ""


def test_used_that_nobody_holds_is_found(claim: Claim) -> None:
    ResourceQuota.objects.filter(pk=overall().pk).update(used=41)
    found = {(item.subject, item.number, item.is_now, item.should_be) for item in differences()}
    assert ("acme/*/core_percent", "used", 41, 40) in found
    assert ("cohort ml/*/core_percent", "taken", 40, 41) in found
    with pytest.raises(CommandError, match="2 numbers differ"):
        check()


def test_a_claim_charged_with_less_than_was_taken_for_it_is_found(claim: Claim) -> None:
    Claim.objects.filter(pk=claim.pk).update(charged_core_percent=39)
    found = {(item.subject, item.number, item.is_now, item.should_be) for item in differences()}
    assert found == {
        ("acme/*/core_percent", "used", 40, 39),
        ("acme/*/core_percent", "ledger", 40, 39),
        ("acme/*/core_percent", "borrowed", 10, 9),
        ("acme/*/core_percent", f"ledger of claim {claim.uid}", 40, 39),
        ("acme/default/core_percent", "used", 40, 39),
        ("acme/default/core_percent", "ledger", 40, 39),
        ("acme/default/core_percent", f"ledger of claim {claim.uid}", 40, 39),
    }


def test_two_claims_whose_entries_were_swapped_are_found_though_the_sum_agrees(cast: Cast) -> None:
    quota = give(cast.acme, core_percent=100, memory_mib=None)["core_percent"]
    first, second = ask(cast, core_request=20), ask(cast, core_request=30)
    for claim, amount in ((first, 1), (second, -1)):
        LedgerEntry.objects.create(
            tenant=cast.acme, resource="core_percent", kind="charge", amount=amount, used=50, hard=100,
            claim_uid=claim.uid, actor="nobody",
        )  # fmt: skip
    assert {item.number for item in differences()} == {f"ledger of claim {row.uid}" for row in (first, second)}
    assert {item.quota_id for item in differences()} == {quota.pk}


def test_a_share_that_is_not_what_its_quotas_add_up_to_is_found(claim: Claim) -> None:
    share = CohortShare.objects.get(resource="core_percent", pool=None)
    CohortShare.objects.filter(pk=share.pk).update(lendable=61)
    assert [(item.number, item.is_now, item.should_be) for item in differences()] == [("lendable", 61, 60)]


def test_a_repair_writes_what_the_claims_say_and_leaves_a_trace(claim: Claim) -> None:
    Claim.objects.filter(pk=claim.pk).update(charged_core_percent=39)
    ResourceQuota.objects.filter(pk=overall().pk).update(used=70, excess=0)
    assert "acme/*/core_percent" in check("--repair")
    assert (overall().used, overall().borrowed) == (39, 9)
    assert not differences()
    assert LedgerEntry.objects.filter(kind="repair").values_list("amount", flat=True).get(pool=None) == -1
    event = AuditEvent.objects.filter(action="quota.repair", object_id=overall().pk).get()
    assert event.before == {"used": 70, "borrowed": 10}
    assert check() == ""


def test_a_repaired_share_leaves_a_trace(claim: Claim) -> None:
    CohortShare.objects.filter(resource="core_percent", pool=None).update(lendable=61, taken=3)
    check("--repair")
    assert not differences()
    event = AuditEvent.objects.get(action="cohort.repair")
    assert (event.object_type, event.object_id) == ("cohort", "ml")
    assert event.before == {"resource": "core_percent", "pool": None, "lendable": 61, "taken": 3}
    assert event.after == {"resource": "core_percent", "pool": None, "lendable": 60, "taken": 40}


def test_what_was_repaired_can_be_given_back(cast: Cast, claim: Claim, machine: Machine) -> None:
    LedgerEntry.objects.create(
        tenant=cast.acme, resource="core_percent", kind="refund", amount=-15, used=25, claim_uid=claim.uid, actor="-"
    )
    check("--repair")
    cast.max.delete(f"claims/{claim.uid}/")
    machine.obey()
    assert overall().used == 0
    assert_books_agree()
    assert check() == ""


def test_what_an_old_server_did_not_write_to_a_share_holds_up_no_release(
    cast: Cast, claim: Claim, machine: Machine
) -> None:
    CohortShare.objects.filter(resource="core_percent", pool=None).update(taken=3)
    cast.max.delete(f"claims/{claim.uid}/")
    machine.obey()
    claim.refresh_from_db()
    assert claim.state == "released"
    assert not differences()


def test_nothing_is_repaired_unless_it_is_asked_for(claim: Claim) -> None:
    Claim.objects.filter(pk=claim.pk).update(charged_core_percent=39)
    with pytest.raises(CommandError):
        check()
    assert overall().used == 40
    assert not AuditEvent.objects.filter(action="quota.repair").exists()


def test_the_nightly_check_says_in_the_log_what_differs(claim: Claim, caplog: pytest.LogCaptureFixture) -> None:
    assert nightly() == 0
    ResourceQuota.objects.filter(pk=overall().pk).update(used=41)
    with caplog.at_level(logging.ERROR):
        assert nightly() == 2
    assert "acme/*/core_percent: used is 41 and should be 40" in caplog.text
