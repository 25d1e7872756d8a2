"""Idle claims: reported, shrunk, or released after a notice, as their pool says; and never by mistake."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from apps.console.overview import attention
from apps.nodes.models import Node, Sample, UsageFrame
from apps.nodes.services.telemetry import rolling
from apps.quotas.models import AuditEvent, Tenant, WebhookDelivery
from apps.quotas.principals import SYSTEM, Principal
from apps.quotas.services.webhooks import hooks
from apps.scheduling.models import Assignment, Claim, Proposal
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.rebalancing import idleness
from apps.scheduling.services.rebalancing.proposals import end_lending
from tests.cast import GIB, Cast, Machine, assert_books_agree, give_plenty, placed, used
from tests.measurements import keep
from tests.scheduling.clock import Clock
from tests.scheduling.idling import borrower, measured, usage
from tests.scheduling.scrapes import scrape

IDLE = 120


@pytest.fixture
def machine(clock: Clock, cast: Cast) -> Machine:
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool, gpus=1)


def set_rule(cast: Cast, rule: str, **more: Any) -> None:
    values = {"idle_rule": rule, "idle_seconds": IDLE, "idle_grace_seconds": 60, **more}
    change_pool(principal=SYSTEM, pool=cast.pool, **values)
    cast.pool.refresh_from_db()


def check_idle(cast: Cast) -> int:
    return idleness.apply_rule(cast.pool, now=timezone.now())


def idle_events(claim: Claim) -> list[str]:
    """Return the claim's events about idleness and its end."""
    rows = AuditEvent.objects.filter(object_type="claim", object_id=str(claim.uid)).order_by("pk")
    words = ("claim.idle", "claim.awake", "claim.lend", "claim.give-back", "claim.release")
    return [row.action for row in rows if row.action in words]


def test_an_idle_claim_is_told_of_once_and_when_it_works_again(cast: Cast, machine: Machine, clock: Clock) -> None:
    set_rule(cast, "report")
    hooks.create(principal=SYSTEM, tenant=cast.acme, url="https://hooks.example.org/", events=["claim.idle"])
    claim, _ = placed(cast, machine, core_request=40)
    measured(claim, clock, seconds=IDLE + 20)
    assert (check_idle(cast), check_idle(cast)) == (1, 0)
    claim.refresh_from_db()
    assert (claim.state, claim.idle_reason, claim.idle_release_at, claim.lent_core) == ("active", "idle", None, 0)
    assert idle_events(claim) == ["claim.idle"]
    assert WebhookDelivery.objects.get().kind == "claim.idle"
    shown = cast.max.get(f"claims/{claim.uid}/").body
    assert (shown["idle_reason"], shown["idle_release_at"]) == ("idle", None)
    assert shown["idle_since"] is not None
    assert scrape(cast.olga).value("gpucloud_claims_idle", pool="default", reason="idle") == 1
    measured(claim, clock, seconds=1, core_percent=50)
    assert check_idle(cast) == 1
    claim.refresh_from_db()
    assert (claim.idle_since, idle_events(claim)) == (None, ["claim.idle", "claim.awake"])
    assert scrape(cast.olga).value("gpucloud_claims_idle", pool="default", reason="idle") == 0


def test_an_idle_claim_needs_attention_of_its_tenant_and_of_nobody_elses(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    set_rule(cast, "release")
    claim, _ = placed(cast, machine)
    measured(claim, clock, seconds=IDLE + 20)
    check_idle(cast)

    def titles(tenant: Tenant) -> list[str]:
        reader = Principal(name="reader", is_operator=False, roles={tenant.pk: "viewer"})
        return [notice.title for notice in attention.notices(reader, None)]

    assert titles(cast.acme) == [f"{claim} is idle"]
    assert titles(cast.globex) == []


@pytest.mark.parametrize("rule", ["off", "report", "shrink", "release"])
def test_a_claim_that_works_is_never_idle(rule: str, cast: Cast, machine: Machine, clock: Clock) -> None:
    set_rule(cast, rule, idle_grace_seconds=0)
    claim, _ = placed(cast, machine, core_request=40)
    measured(claim, clock, seconds=IDLE)
    # One second of work in two minutes is work; so is waiting for a turn.
    measured(claim, clock, seconds=1, core_percent=90)
    measured(claim, clock, seconds=IDLE - 20)
    assert check_idle(cast) == 0
    measured(claim, clock, seconds=10, throttled_percent=80)
    measured(claim, clock, seconds=IDLE - 20)
    assert check_idle(cast) == 0
    assert idle_events(claim) == []


def test_what_was_not_measured_is_not_idleness(cast: Cast, machine: Machine, clock: Clock) -> None:
    set_rule(cast, "release", unused_seconds=IDLE, idle_grace_seconds=0)
    claim, _ = placed(cast, machine)
    clock.advance(seconds=2 * IDLE)
    assert check_idle(cast) == 0
    # A fifth of a window is missing.
    measured(claim, clock, seconds=IDLE - 40, processes=0)
    clock.advance(seconds=30)
    measured(claim, clock, seconds=20, processes=0)
    assert check_idle(cast) == 0
    # Enough samples, but the node is silent now.
    measured(claim, clock, seconds=IDLE + 20, processes=0)
    clock.now += timedelta(seconds=11)
    assert check_idle(cast) == 0
    # The control: with a heartbeat it would be released.
    Node.objects.update(last_seen_at=clock.now)
    assert check_idle(cast) == 1
    claim.refresh_from_db()
    assert claim.state == "releasing"


def test_a_node_that_falls_silent_takes_the_notice_back(cast: Cast, machine: Machine, clock: Clock) -> None:
    set_rule(cast, "release")
    claim, _ = placed(cast, machine)
    measured(claim, clock, seconds=IDLE + 20)
    check_idle(cast)
    clock.now += timedelta(seconds=120)
    check_idle(cast)
    claim.refresh_from_db()
    assert (claim.state, claim.idle_since, claim.idle_release_at) == ("active", None, None)
    row = AuditEvent.objects.get(action="claim.awake")
    assert row.after is not None
    assert "Too little was measured" in row.after["why"]


def test_an_idle_claim_is_released_after_its_notice(cast: Cast, machine: Machine, clock: Clock) -> None:
    set_rule(cast, "release")
    claim, _ = placed(cast, machine, core_request=40)
    measured(claim, clock, seconds=IDLE + 20)
    check_idle(cast)
    claim.refresh_from_db()
    assert claim.idle_release_at == clock.now + timedelta(seconds=60)
    measured(claim, clock, seconds=59)
    check_idle(cast)
    claim.refresh_from_db()
    assert claim.state == "active"
    measured(claim, clock, seconds=1)
    check_idle(cast)
    claim.refresh_from_db()
    assert (claim.state, claim.idle_since) == ("releasing", None)
    machine.obey()
    assert used(cast.acme)["core_percent"] == 0
    row = AuditEvent.objects.get(action="claim.release")
    assert row.after is not None
    assert "in any second of the last 120 s" in row.after["why"]
    assert_books_agree()


def test_who_worked_while_nobody_looked_has_its_notice_anew(cast: Cast, machine: Machine, clock: Clock) -> None:
    set_rule(cast, "release")
    claim, _ = placed(cast, machine)

    def looked() -> str:
        cast.pool.refresh_from_db()
        check_idle(cast)
        claim.refresh_from_db()
        return str(claim.state)

    measured(claim, clock, seconds=IDLE + 20)
    assert looked() == "active"
    # The workers are down: it works within its notice, and is idle again.
    measured(claim, clock, seconds=30, core_percent=90)
    measured(claim, clock, seconds=IDLE + 20)
    assert looked() == "active"
    assert claim.idle_release_at == timezone.now().replace(microsecond=0) + timedelta(seconds=60)
    assert idle_events(claim) == ["claim.idle", "claim.idle"]
    measured(claim, clock, seconds=61)
    assert looked() == "releasing"


def test_a_claim_that_works_within_its_notice_is_kept(cast: Cast, machine: Machine, clock: Clock) -> None:
    set_rule(cast, "release")
    claim, _ = placed(cast, machine)
    measured(claim, clock, seconds=IDLE + 20)
    check_idle(cast)
    measured(claim, clock, seconds=30)
    measured(claim, clock, seconds=1, core_percent=20)
    measured(claim, clock, seconds=60)
    check_idle(cast)
    claim.refresh_from_db()
    assert (claim.state, claim.idle_release_at) == ("active", None)
    # It has its full notice again.
    measured(claim, clock, seconds=IDLE)
    check_idle(cast)
    claim.refresh_from_db()
    assert claim.idle_release_at == clock.now + timedelta(seconds=60)


def test_an_idle_claim_shrinks_and_has_its_own_back_at_its_first_second_of_work(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    set_rule(cast, "shrink")
    claim, _ = placed(cast, machine, core_request=80)
    measured(claim, clock, seconds=IDLE + 20)
    check_idle(cast)
    claim.refresh_from_db()
    assert (claim.state, claim.core_request, claim.lent_core) == ("active", 80, 75)
    # With the rebalancer off, core lent by the rule stays lent.
    assert end_lending() == 0
    assert borrower(cast).borrowed_core == 60
    machine.obey()
    clock.advance(seconds=1)
    usage(machine, claim, core_percent=30)
    claim.refresh_from_db()
    assert claim.lent_core == 0
    check_idle(cast)
    claim.refresh_from_db()
    assert claim.idle_since is None
    found = [(row.kind, row.policy, row.state) for row in Proposal.objects.order_by("pk")]
    assert found == [("lend", "idle", "applied"), ("give-back", "waking", "applied")]
    assert idle_events(claim) == ["claim.idle", "claim.lend", "claim.give-back", "claim.awake"]
    assert_books_agree()


def test_a_rule_that_is_turned_off_gives_back_and_says_so(cast: Cast, machine: Machine, clock: Clock) -> None:
    set_rule(cast, "shrink")
    claim, _ = placed(cast, machine, core_request=80)
    measured(claim, clock, seconds=IDLE + 20)
    check_idle(cast)
    set_rule(cast, "off")
    # The last check was a moment ago.
    assert idleness.drive() == 0
    clock.advance(seconds=5)
    assert idleness.drive() == 1
    claim.refresh_from_db()
    assert (claim.idle_since, claim.lent_core) == (None, 0)
    clock.advance(seconds=5)
    assert idleness.drive() == 0


@pytest.mark.parametrize("rule", ["shrink", "release"])
def test_a_claim_that_opted_out_is_only_told_of(rule: str, cast: Cast, machine: Machine, clock: Clock) -> None:
    set_rule(cast, rule, idle_grace_seconds=0)
    claim, _ = placed(cast, machine, core_request=80, rebalance=False)
    measured(claim, clock, seconds=IDLE + 20)
    check_idle(cast)
    claim.refresh_from_db()
    assert (claim.state, claim.idle_reason, claim.idle_release_at, claim.lent_core) == ("active", "idle", None, 0)


def test_a_claim_that_no_program_uses_is_released_whatever_the_idle_rule(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    set_rule(cast, "off", unused_seconds=IDLE)
    leaked, _ = placed(cast, machine, core_request=20, memory_mib=GIB, name="leaked", rebalance=False)
    loaded, _ = placed(cast, machine, core_request=20, memory_mib=GIB, name="loaded")
    begin = clock.now
    measured(leaked, clock, seconds=IDLE + 20, processes=0)
    clock.now = begin
    # It computes nothing, but its program exists.
    measured(loaded, clock, seconds=IDLE + 20, memory_mib=100)
    check_idle(cast)
    leaked.refresh_from_db()
    loaded.refresh_from_db()
    assert (leaked.idle_reason, loaded.idle_reason) == ("unused", None)
    begin = clock.now
    measured(leaked, clock, seconds=60, processes=0)
    clock.now = begin
    measured(loaded, clock, seconds=60, memory_mib=100)
    check_idle(cast)
    leaked.refresh_from_db()
    loaded.refresh_from_db()
    assert (leaked.state, loaded.state) == ("releasing", "active")


def test_a_program_that_came_a_moment_ago_is_a_program(cast: Cast, machine: Machine, clock: Clock) -> None:
    set_rule(cast, "off", unused_seconds=IDLE, idle_grace_seconds=0)
    claim, _ = placed(cast, machine)
    measured(claim, clock, seconds=IDLE + 20, processes=0)
    measured(claim, clock, seconds=2, processes=1)
    assert check_idle(cast) == 0


def test_a_new_claim_has_all_of_its_time(cast: Cast, machine: Machine, clock: Clock) -> None:
    set_rule(cast, "release", unused_seconds=IDLE, idle_grace_seconds=0)
    claim, _ = placed(cast, machine)
    measured(claim, clock, seconds=IDLE - 1, processes=0)
    assert check_idle(cast) == 0
    Assignment.objects.filter(claim=claim).update(in_force_at=None)
    measured(claim, clock, seconds=60, processes=0)
    assert check_idle(cast) == 0


@pytest.mark.parametrize("seconds", [300, 2 * 3600])
def test_long_windows_are_read_from_roll_ups(
    seconds: int, cast: Cast, machine: Machine, clock: Clock, settings: Any
) -> None:
    set_rule(cast, "report", idle_seconds=seconds)
    claim, _ = placed(cast, machine)
    measured(claim, clock, seconds=seconds + 120)
    rolling.roll_up()
    # The raw seconds are deleted; the roll-ups have their sums.
    UsageFrame.objects.filter(at__lt=clock.now - timedelta(seconds=200)).delete()
    assert check_idle(cast) == 1
    # A second of work is in its span.
    begin = clock.now
    measured(claim, clock, seconds=1, core_percent=100)
    measured(claim, clock, seconds=100)
    rolling.roll_up()
    UsageFrame.objects.filter(at__lt=begin + timedelta(seconds=60)).delete()
    assert check_idle(cast) == 1
    claim.refresh_from_db()
    assert claim.idle_since is None


def test_of_several_gpus_one_that_works_is_enough(cast: Cast, clock: Clock) -> None:
    give_plenty(cast.acme)
    machine = Machine("gpu1", cast.pool, gpus=2)
    set_rule(cast, "report")
    claim, _ = placed(cast, machine, gpu_count=2)
    measured(claim, clock, seconds=IDLE + 20)
    assert check_idle(cast) == 1
    one = claim.assignments.order_by("pk")[0]
    begin = clock.now
    measured(claim, clock, seconds=10)
    keep([Sample(assignment_uid=one.uid, at=begin, core_percent=50.0, memory_bytes=0, processes=1)])
    assert check_idle(cast) == 1
    claim.refresh_from_db()
    assert claim.idle_since is None


def test_a_look_costs_the_same_queries_however_many_claims_there_are(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    set_rule(cast, "release", unused_seconds=IDLE)

    def cost() -> int:
        with CaptureQueriesContext(connection) as asked:
            check_idle(cast)
        return len(asked)

    placed(cast, machine, core_request=5, memory_mib=GIB)
    few = cost()
    for _ in range(5):
        placed(cast, machine, core_request=5, memory_mib=GIB)
    assert cost() == few


def test_shrink_where_nothing_can_be_lent_is_refused_both_ways(cast: Cast) -> None:
    etag = cast.olga.get("pools/default/").headers["ETag"]
    body = {"idle_rule": "shrink", "sharing_policy": "fixed"}
    answer = cast.olga.patch("pools/default/", body, if_match=etag)
    assert (answer.status, answer.code) == (422, "shrink-needs-lending")
    set_rule(cast, "shrink")
    etag = cast.olga.get("pools/default/").headers["ETag"]
    answer = cast.olga.patch("pools/default/", {"sharing_policy": "native"}, if_match=etag)
    assert (answer.status, answer.code) == (422, "shrink-needs-lending")


@pytest.mark.parametrize(
    "wrong", [{"idle_seconds": 9}, {"idle_seconds": 604_801}, {"unused_seconds": 0}, {"idle_grace_seconds": -1},
              {"idle_rule": "kill"}, {"idle_seconds": None}],
)  # fmt: skip
def test_bounds_of_the_rule_are_kept(wrong: dict[str, Any], cast: Cast) -> None:
    etag = cast.olga.get("pools/default/").headers["ETag"]
    assert cast.olga.patch("pools/default/", wrong, if_match=etag).status == 400
