"""Proposals of the rebalancer: the approval that they need, the precedence of users, and the bounds of a pool."""

from typing import Any

import pytest
from django.db import connection

from apps.nodes.models import Gpu
from apps.quotas.api.pool_serializers import RebalanceBoundsSerializer
from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.rebalancing.values import Bounds
from apps.scheduling import tasks
from apps.scheduling.models import Claim, Proposal
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.rebalancing import guarantees, proposals
from apps.scheduling.services.rebalancing.observing import bounds_of
from gpucloud import locks
from tests.cast import GIB, Cast, Machine, placed, used
from tests.scheduling.clock import Clock
from tests.scheduling.idling import machine, measured, run

__all__ = ["machine"]


def test_what_costs_its_owner_something_waits_for_a_yes(cast: Cast, machine: Machine, clock: Clock) -> None:
    claim, _ = placed(cast, machine, core_request=40, core_limit=100)
    measured(claim, clock, core_percent=45, throttled_percent=60)
    (found,) = run(cast)
    assert (found.kind, found.state, found.after) == ("resize", "proposed", {"core_request": 60})
    assert [again.pk for again in run(cast)] == [found.pk], "the same is not proposed twice"
    path = f"proposals/{found.uid}/"
    assert cast.vera.post(f"{path}accept/").code == "role-missing"
    answer = cast.max.post(f"{path}accept/")
    assert (answer.status, answer.body["state"]) == (200, "applied")
    claim.refresh_from_db()
    assert (claim.core_request, used(cast.acme)["core_percent"]) == (60, 60)
    assert cast.max.post(f"{path}accept/").code == "wrong-state"
    actions = [row["action"] for row in cast.anna.get("audit/?object_type=proposal").body["results"]]
    assert actions == ["proposal.accept"]


def test_no_more_is_proposed_than_is_left_beside_what_is_used_without_a_claim(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    claim, _ = placed(cast, machine, core_request=40, core_limit=100)
    Gpu.objects.update(core_outside=50)
    measured(claim, clock, core_percent=45, throttled_percent=60)
    assert [found.after for found in run(cast)] == [{"core_request": 50}]


def test_a_proposal_of_less_memory_is_never_below_what_is_in_use(cast: Cast, machine: Machine, clock: Clock) -> None:
    change_pool(principal=SYSTEM, pool=cast.pool, rebalance_policy="percentile")
    claim, _ = placed(cast, machine, core_request=40, memory_mib=16 * GIB)
    measured(claim, clock, core_percent=34, memory_mib=4 * GIB)
    (found,) = run(cast)
    assert (found.kind, found.state) == ("resize", "proposed")
    assert found.after == {"memory_mib": -(-4 * GIB * 120 // 100)}


def test_a_proposal_that_nobody_can_keep_any_more_says_so(cast: Cast, machine: Machine, clock: Clock) -> None:
    claim, _ = placed(cast, machine, core_request=40, core_limit=100)
    measured(claim, clock, core_percent=45, throttled_percent=60)
    (found,) = run(cast)
    resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(core_request=50))
    answer = cast.max.post(f"proposals/{found.uid}/accept/")
    assert (answer.code, "(core_request): dismiss this" in answer.body["detail"]) == ("proposal-stale", True)
    claim = resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(core_request=40))
    machine.obey()
    placed(cast, machine, core_request=60)
    assert cast.max.post(f"proposals/{found.uid}/accept/").code == "no-room"
    found.refresh_from_db()
    assert found.state == "proposed"


def test_a_dismissed_proposal_is_not_made_again_within_the_cool_down(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    claim, _ = placed(cast, machine, core_request=40, core_limit=100)
    measured(claim, clock, core_percent=45, throttled_percent=60)
    (found,) = run(cast)
    answer = cast.max.post(f"proposals/{found.uid}/dismiss/", {"words": "It ends today."})
    assert (answer.body["state"], answer.body["words"]) == ("dismissed", "It ends today.")
    assert run(cast) == []


def test_a_dry_run_says_what_would_change_and_why_and_changes_nothing(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    change_pool(principal=SYSTEM, pool=cast.pool, rebalance_mode="off")
    claim, _ = placed(cast, machine, core_request=80)
    measured(claim, clock)
    path = "pools/default/rebalance/"
    assert cast.olga.post(path).code == "rebalancing-off"
    answer = cast.olga.post(f"{path}?dry_run=true")
    assert (answer.body["mode"], answer.body["considered"], answer.body["dry_run"]) == ("off", 1, True)
    (change,) = answer.body["changes"]
    assert (change["claim"], change["kind"], change["after"]) == (str(claim.uid), "lend", {"lent_core": 75})
    assert "best-effort claims may use 75 of its 80 points" in change["explanation"]
    assert (machine.gpu().core_lent, Proposal.objects.count()) == (0, 0)


def test_in_mode_propose_nothing_is_done_without_a_yes(cast: Cast, machine: Machine, clock: Clock) -> None:
    change_pool(principal=SYSTEM, pool=cast.pool, rebalance_mode="propose")
    claim, _ = placed(cast, machine, core_request=80)
    measured(claim, clock)
    assert tasks.rebalance_pool(cast.pool.pk) == 1
    assert machine.gpu().core_lent == 0
    (row,) = cast.max.get("proposals/?state=proposed").body["results"]
    assert cast.gus.get("proposals/").body["results"] == []
    assert cast.max.post(f"proposals/{row['uid']}/accept/").status == 200
    assert machine.gpu().core_lent == 75


def test_one_run_of_a_pool_at_a_time(cast: Cast, machine: Machine, clock: Clock) -> None:
    claim, _ = placed(cast, machine, core_request=80)
    measured(claim, clock)
    other, lock = connection.copy(), [locks.number_of(proposals.lock_name(cast.pool))]
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_lock(%s)", lock)
            assert run(cast) == []
            # The end of a connection gives it back a moment later.
            cursor.execute("SELECT pg_advisory_unlock(%s)", lock)
    finally:
        other.close()
    assert len(run(cast)) == 1


def test_a_run_that_fails_keeps_no_other_from_beginning(
    cast: Cast, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*what: Any) -> proposals.RunResult:
        raise ZeroDivisionError("as if by a mistake")

    monkeypatch.setattr(proposals, "_plan", fail)
    with pytest.raises(ZeroDivisionError):
        run(cast)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
        assert cursor.fetchone() == (0,)


@pytest.mark.parametrize("said", [{"core_limit": 50}, {"rebalance": False}], ids=["another", "opted-out"])
def test_what_an_owner_sets_while_a_run_decides_stands(
    cast: Cast, machine: Machine, clock: Clock, monkeypatch: pytest.MonkeyPatch, said: dict[str, Any]
) -> None:
    claim, _ = placed(cast, machine, core_request=40)
    measured(claim, clock, core_percent=39.5, throttled_percent=60)
    assert [found.after for found in run(cast)] == [{"core_limit": 60}]
    machine.obey()
    measured(claim, clock, core_percent=20)
    plan = proposals._plan

    def overtaken(*what: Any) -> proposals.RunResult:
        found = plan(*what)
        resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(**said))
        return found

    monkeypatch.setattr(proposals, "_plan", overtaken)
    (found,) = run(cast)
    assert (found.after, found.state) == ({"core_limit": 40}, "failed")
    assert found.words.startswith("The claim has changed since (")
    assert "dismiss" not in found.words, "it is over already"
    claim.refresh_from_db()
    assert claim.core_limit == said.get("core_limit", 60)


def test_a_change_that_fails_by_a_mistake_holds_up_no_other(
    cast: Cast, machine: Machine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = [placed(cast, machine, core_request=40, name=name)[0] for name in ("unlucky", "train")]
    measured(claims[0], clock)
    measured(claims[1], clock)
    lend = guarantees.lend

    def raising(*, claim: Claim, **how: Any) -> Claim:
        if claim.name == "unlucky":
            raise ZeroDivisionError("as if by a mistake")
        return lend(claim=claim, **how)

    monkeypatch.setattr(guarantees, "lend", raising)
    assert [(found.claim.name, found.state) for found in run(cast)] == [("train", "applied")]


def test_the_bounds_of_a_pool_are_those_of_the_policies(cast: Cast) -> None:
    assert set(RebalanceBoundsSerializer().fields) == set(Bounds.__dataclass_fields__)
    calendar = [{"days": [5, 6], "from": "00:00", "to": "24:00", "share_percent": 50}]
    answer = cast.olga.patch("pools/default/", {"rebalance_bounds": {"floor_percent": 10, "calendar": calendar}})
    assert answer.body["rebalance_bounds"] == {"floor_percent": 10, "calendar": calendar}
    cast.pool.refresh_from_db()
    bounds = bounds_of(cast.pool)
    assert (bounds.floor_percent, bounds.calendar[0].to_minute, bounds.step_percent) == (10, 1440, 20)
    for wrong in ({"floor": 1}, {"floor_percent": 0}, {"idle_percent": 9}, {"calendar": [{"days": [0]}]}):
        assert cast.olga.patch("pools/default/", {"rebalance_bounds": wrong}).status == 400


def test_a_run_says_why_it_found_nothing_and_who_had_it_run_is_audited(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    path = "pools/default/rebalance/"
    assert cast.olga.post(path).body["explanation"] == "No claim of the pool is active."
    claim, _ = placed(cast, machine, core_request=80)
    assert "1 claims are active, and none of them was measured" in cast.olga.post(path).body["explanation"]
    measured(claim, clock, core_percent=79)
    clock.advance(seconds=1)
    answer = cast.olga.post(path).body
    assert (answer["considered"], answer["changes"]) == (1, [])
    assert "none needs another share" in answer["explanation"]
    rows = AuditEvent.objects.filter(action="pool.rebalance").order_by("pk")
    assert [row.after and row.after["considered"] for row in rows] == [0, 0, 1]
    assert all(row.actor.startswith("user:") for row in rows)
    assert tasks.rebalance_pool(cast.pool.pk) == 0
    assert rows.count() == 3
