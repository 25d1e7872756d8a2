"""The idle rule `suspend`: an idle claim gets notice, is suspended after its grace, and its owner resumes it."""

import pytest
from django.utils import timezone

from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.rebalancing import idleness
from tests.cast import GIB, Cast, Machine, ask, assert_books_agree, give, give_plenty, placed, seen
from tests.scheduling.clock import Clock
from tests.scheduling.idling import measured
from tests.suspension.test_pages import browser, page_of
from tests.suspension.test_suspending import resume

__all__ = ["browser"]

IDLE, GRACE = 120, 60


@pytest.fixture
def lab(clock: Clock, cast: Cast) -> Machine:
    """Create one node that can suspend claims, in a pool that suspends idle ones."""
    give_plenty(cast.acme)
    set_rule(cast, "suspend")
    return Machine("gpu1", cast.pool, gpus=1, host_memory_mib=20 * GIB)


def set_rule(cast: Cast, rule: str) -> None:
    change_pool(principal=SYSTEM, pool=cast.pool, idle_rule=rule, idle_seconds=IDLE, idle_grace_seconds=GRACE)
    cast.pool.refresh_from_db()


def check_idle(cast: Cast) -> int:
    return idleness.apply_rule(cast.pool, now=timezone.now())


def fresh(claim: Claim) -> Claim:
    claim.refresh_from_db()
    return claim


def idle(cast: Cast, claim: Claim, clock: Clock) -> Claim:
    """Let the claim be idle, and its notice run out."""
    measured(claim, clock, seconds=IDLE + 20)
    check_idle(cast)
    measured(claim, clock, seconds=GRACE)
    check_idle(cast)
    return fresh(claim)


def test_an_idle_claim_is_suspended_after_its_notice_and_only_its_owner_resumes_it(
    cast: Cast, lab: Machine, clock: Clock
) -> None:
    claim, _ = placed(cast, lab)
    measured(claim, clock, seconds=IDLE + 20)
    assert check_idle(cast) == 1
    assert fresh(claim).state == "active"
    assert claim.idle_release_at is not None
    assert (claim.idle_release_at - clock.now).total_seconds() == GRACE
    measured(claim, clock, seconds=GRACE)
    assert check_idle(cast) == 1
    assert (fresh(claim).state, claim.suspended_by, claim.idle_since) == ("suspending", "idle", None)
    assert "It used at most 0.0 % of a GPU in any second of the last 120 s." in claim.reasons[0]["detail"]
    lab.obey()
    run_round(cast.pool)
    assert (check_idle(cast), fresh(claim).state) == (0, "suspended")
    assert resume(cast, claim).body["state"] == "resuming"
    run_round(cast.pool)
    lab.obey()
    assert fresh(claim).state == "active"
    # It has a whole window again before it counts as idle.
    measured(claim, clock, seconds=30)
    assert check_idle(cast) == 0
    assert_books_agree()


def test_work_within_the_notice_keeps_the_claim(cast: Cast, lab: Machine, clock: Clock) -> None:
    claim, _ = placed(cast, lab)
    measured(claim, clock, seconds=IDLE + 20)
    check_idle(cast)
    measured(claim, clock, seconds=1, core_percent=60)
    measured(claim, clock, seconds=GRACE)
    check_idle(cast)
    assert (fresh(claim).state, claim.idle_since) == ("active", None)


def test_an_owner_who_opted_out_is_only_told(cast: Cast, lab: Machine, clock: Clock) -> None:
    claim, _ = placed(cast, lab, rebalance=False)
    assert idle(cast, claim, clock).state == "active"
    assert (claim.idle_reason, claim.idle_release_at) == ("idle", None)


def test_a_claim_of_a_group_and_one_on_an_old_node_are_only_reported(cast: Cast, lab: Machine, clock: Clock) -> None:
    claims = [ask(cast, core_request=10, group="train", group_size=2) for _ in range(2)]
    run_round(cast.pool)
    lab.obey()
    assert idle(cast, claims[0], clock).idle_release_at is None
    assert fresh(claims[0]).state == "active"
    lab.node.refresh_from_db()
    lab.node.change(can_suspend=False)
    claim, _ = placed(cast, lab, core_request=10)
    assert (idle(cast, claim, clock).state, claim.idle_release_at) == ("active", None)


def test_a_claim_without_room_in_host_memory_says_so_and_is_suspended_later(
    cast: Cast, lab: Machine, clock: Clock
) -> None:
    give(cast.acme, host_memory_mib=GIB)
    claim, _ = placed(cast, lab, memory_mib=8 * GIB)
    assert idle(cast, claim, clock).state == "active"
    assert "It is idle, and cannot be suspended now." in claim.reasons[0]["detail"]
    assert "quota exceeded" in claim.reasons[0]["detail"]
    version = claim.version
    measured(claim, clock, seconds=5)
    check_idle(cast)
    assert fresh(claim).version == version, "it is said once"
    cast.acme.quotas.filter(resource="host_memory_mib").update(hard=20 * GIB)
    measured(claim, clock, seconds=5)
    check_idle(cast)
    assert fresh(claim).state == "suspending"


def test_a_claim_that_its_node_refuses_is_only_reported_until_it_is_used(
    cast: Cast, lab: Machine, clock: Clock
) -> None:
    claim, assignment = placed(cast, lab)
    idle(cast, claim, clock)
    lab.say(seen(assignment, suspend_refused="It uses managed memory."))
    lab.obey()
    assert fresh(claim).state == "active"
    assert idle(cast, claim, clock).state == "active"
    assert (claim.idle_release_at, claim.reasons[0]["code"]) == (None, "suspend-refused")
    measured(claim, clock, seconds=1, core_percent=60)
    check_idle(cast)
    assert fresh(claim).reasons == []
    assert idle(cast, claim, clock).state == "suspending"


def test_the_page_says_that_it_will_be_suspended(cast: Cast, lab: Machine, clock: Clock, browser: object) -> None:
    claim, _ = placed(cast, lab)
    measured(claim, clock, seconds=IDLE + 20)
    check_idle(cast)
    assert callable(browser)
    page = page_of(browser("max"), claim)
    assert "It will be suspended" in page
    assert "It will be released" not in page
