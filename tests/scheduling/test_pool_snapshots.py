"""The scheduler's in-memory snapshot equals the database, and remembered refusals never block a claim."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from apps.nodes.models import Node
from apps.nodes.services.nodes import change_node
from apps.quotas.models import Pool
from apps.quotas.principals import SYSTEM
from apps.quotas.services import budgets, member_limits, tenants
from apps.quotas.services.quotas import change_quota
from apps.scheduling.core.values import Placed, Refused, Request
from apps.scheduling.management.commands import scheduler
from apps.scheduling.models import Claim
from apps.scheduling.models.claim import WAITING
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles.comparing import compare
from apps.scheduling.services.cycles.pool_cache import PoolCache
from apps.scheduling.services.cycles.rounds import rounds
from apps.scheduling.services.failures import NoLongerLeader
from apps.scheduling.services.fleet.devices import read_devices
from tests.cast import Cast, Machine, ask, assert_books_agree, give, give_plenty, lose
from tests.matrix import seeds
from tests.scheduling.life import Kept, Life

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def kept(real_cast: Cast) -> Kept:
    give_plenty(real_cast.acme)
    return Kept(real_cast.pool)


def in_memory(cache: PoolCache) -> tuple[Any, Any]:
    gpus = {gpu.uuid: gpu for gpu in cache.fleet.gpus()}
    assert gpus == {uuid: device.state for uuid, device in cache.devices.items()}
    return gpus, {key: waiting.claim.version for key, waiting in cache.waiting.items()}


def in_database(pool: Pool) -> tuple[Any, Any]:
    waiting = Claim.objects.filter(pool=pool, state__in=WAITING)
    return {device.state.uuid: device.state for device in read_devices(pool)}, dict(
        waiting.values_list("pk", "version")
    )


def live_through(cast: Cast, kept: Kept, *, seed: int, steps: int) -> None:
    life = Life(cast, kept, seed)
    for _ in range(steps):
        life.step()
        kept.hear()
        # On a slow machine a node may have become silent meanwhile, which sends no notice.
        kept.cache.refresh_silent_nodes()
        assert in_memory(kept.cache) == in_database(cast.pool)
    assert_books_agree()


@pytest.mark.parametrize("seed", seeds(2))
def test_the_increments_equal_a_fresh_read_whatever_happens(real_cast: Cast, kept: Kept, seed: int) -> None:
    live_through(real_cast, kept, seed=seed, steps=60)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_increments_equal_a_fresh_read_after_a_long_life(real_cast: Cast, kept: Kept) -> None:
    live_through(real_cast, kept, seed=3, steps=5000)


@contextmanager
def disable_notices() -> Iterator[None]:
    """Turn triggers off for this session."""
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        yield
        cursor.execute("SET session_replication_role = origin")


def test_control_without_notices_the_picture_is_soon_another_and_a_comparison_heals_it(
    real_cast: Cast, kept: Kept
) -> None:
    machine = Machine("gpu1", real_cast.pool)
    kept.hear()
    with disable_notices():
        ask(real_cast)
        change_node(principal=SYSTEM, node=machine.node, cordoned=True)
    kept.hear()
    assert in_memory(kept.cache) != in_database(real_cast.pool)
    assert compare(kept.cache) == 5
    assert in_memory(kept.cache) == in_database(real_cast.pool)
    assert compare(kept.cache) == 0


def test_silence_of_a_node_is_noticed_without_a_notice(real_cast: Cast, kept: Kept) -> None:
    machine = Machine("gpu1", real_cast.pool)
    kept.hear()
    with disable_notices():
        lose(machine)
    assert kept.cache.refresh_silent_nodes() == 4
    assert kept.cache.refresh_silent_nodes() == 0
    assert in_memory(kept.cache) == in_database(real_cast.pool)


def test_heartbeats_send_no_notice_and_a_return_does(real_cast: Cast, kept: Kept) -> None:
    machine = Machine("gpu1", real_cast.pool)
    lose(machine)
    kept.hear()
    nodes = Node.objects.filter(pk=machine.node.pk)
    nodes.update(last_seen_at=timezone.now())
    assert kept.session.receive() == {"node": {str(machine.node.pk)}}
    for second in range(3):
        nodes.update(last_seen_at=timezone.now() + timedelta(seconds=second))
    assert not kept.session.receive()


def waiting_for_quota(cast: Cast, kept: Kept) -> tuple[Claim, Any]:
    """Create a claim that was refused by its tenant's quota; the refusal is remembered."""
    quota = give(cast.globex, core_percent=10, memory_mib=None)["core_percent"]
    Machine("gpu1", cast.pool)
    claim = ask(cast, tenant=cast.globex, core_request=40, when_over_quota="wait")
    kept.hear()
    kept.rounds()
    kept.hear()
    assert not kept.cache.candidates(now=0)
    return claim, quota


def state_of(claim: Claim) -> str:
    claim.refresh_from_db()
    return str(claim.state)


def heard_and_placed(kept: Kept, claim: Claim) -> bool:
    kept.hear()
    kept.rounds()
    return state_of(claim) == "assigned"


def test_a_raised_quota_has_what_waited_for_it_asked_again(real_cast: Cast, kept: Kept) -> None:
    claim, quota = waiting_for_quota(real_cast, kept)
    change_quota(principal=SYSTEM, quota=quota, hard=39)
    assert not heard_and_placed(kept, claim)
    change_quota(principal=SYSTEM, quota=quota, hard=40)
    assert heard_and_placed(kept, claim)
    assert_books_agree()


def test_what_others_of_the_tenant_give_back_has_it_asked_again(real_cast: Cast, kept: Kept) -> None:
    claim, quota = waiting_for_quota(real_cast, kept)
    change_quota(principal=SYSTEM, quota=quota, hard=45)
    other = ask(real_cast, tenant=real_cast.globex, core_request=10)
    assert not heard_and_placed(kept, claim)
    release_claim(principal=SYSTEM, claim=other)
    Machine("gpu2", real_cast.pool)
    machine_of(other).obey()
    assert heard_and_placed(kept, claim)


def machine_of(claim: Claim) -> Machine:
    machine = Machine.__new__(Machine)
    machine.node = claim.assignments.get().gpu.node
    machine.name = machine.node.name
    return machine


def test_what_a_cohort_lends_again_has_it_asked_again(real_cast: Cast, kept: Kept) -> None:
    for tenant in (real_cast.acme, real_cast.globex):
        tenants.change_tenant(principal=SYSTEM, tenant=tenant, cohort="lab")
    claim, _ = waiting_for_quota(real_cast, kept)
    rich = give(tenants.create_tenant(principal=SYSTEM, slug="rich", name="Rich"), core_percent=30)["core_percent"]
    tenants.change_tenant(principal=SYSTEM, tenant=rich.tenant, cohort="lab")
    assert heard_and_placed(kept, claim)


def test_a_raised_member_limit_has_it_asked_again(real_cast: Cast, kept: Kept) -> None:
    Machine("gpu1", real_cast.pool)
    row = member_limits.create_limit(
        principal=SYSTEM, tenant=real_cast.acme, user=None, resource="core_percent", hard=10
    )
    claim = ask(real_cast, principal=real_cast.member, core_request=40, when_over_quota="wait")
    assert not heard_and_placed(kept, claim)
    member_limits.change_limit(principal=SYSTEM, row=row, hard=40)
    assert heard_and_placed(kept, claim)


def test_a_raised_budget_has_it_asked_again(real_cast: Cast, kept: Kept) -> None:
    Machine("gpu1", real_cast.pool)
    claim = ask(real_cast)
    row = budgets.create_budget(principal=SYSTEM, tenant=real_cast.acme, period="week", gpu_hours=Decimal(0))
    assert not heard_and_placed(kept, claim)
    assert claim.reasons[0]["code"] == "budget-exceeded"
    budgets.change_budget(principal=SYSTEM, budget=row, gpu_hours=Decimal(1))
    assert heard_and_placed(kept, claim)


def test_a_long_queue_that_does_not_fit_is_not_asked_again_for_what_cannot_help(
    real_cast: Cast, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine("gpu1", real_cast.pool, gpus=1)
    holder = ask(real_cast, core_request=90)
    queue = [ask(real_cast, core_request=core) for core in (50, 50, 50, 70)]
    assert heard_and_placed(kept, holder)
    kept.hear()
    asked: list[int] = []
    place = kept.cache.fleet.place

    def counted(request: Request, **facts: Any) -> Placed | Refused:
        asked.append(request.core_request)
        return place(request, **facts)

    monkeypatch.setattr(kept.cache.fleet, "place", counted)
    machine.obey()
    resize_claim(principal=SYSTEM, claim=holder, changes=ClaimChanges(core_request=60))
    machine.obey()
    kept.hear()
    kept.rounds()
    assert asked == []
    resize_claim(principal=SYSTEM, claim=holder, changes=ClaimChanges(core_request=45))
    machine.obey()
    assert heard_and_placed(kept, queue[0])
    assert asked == [50, 50]  # the first is placed, the next of its kind refused, and that holds for the third too
    assert {state_of(claim) for claim in queue[1:]} == {"queued"}


def test_what_is_heard_when_rounds_are_about_to_end_is_asked(
    real_cast: Cast, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine("gpu1", real_cast.pool)
    kept.hear()
    command, late = scheduler.Command(), list[Claim]()
    command.session, command.caches = kept.session, {real_cast.pool.pk: kept.cache}
    hear = command._receive

    def hear_of_a_claim() -> bool:
        if not late:
            late.append(ask(real_cast))
        return hear()

    monkeypatch.setattr(command, "_receive", hear_of_a_claim)
    command._rounds(command.caches, in_full=False)
    assert state_of(late[0]) == "assigned"


def command_that_always_hears(cast: Cast, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> tuple[scheduler.Command, Any]:
    """Create a claim before each check of the notices; `heard` are the checks."""
    Machine("gpu1", cast.pool)
    kept.hear()
    command, heard = scheduler.Command(), list[Claim]()
    command.session, command.caches = kept.session, {cast.pool.pk: kept.cache}
    hear = command._receive

    def hear_of_a_claim() -> bool:
        assert len(heard) < 10, "it goes on as long as something happens"
        heard.append(ask(cast, core_request=1, memory_mib=1))
        return hear()

    monkeypatch.setattr(command, "_receive", hear_of_a_claim)
    return command, heard


def test_notices_that_never_cease_do_not_keep_a_scheduler_from_the_rest_of_its_work(
    real_cast: Cast, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, heard = command_that_always_hears(real_cast, kept, monkeypatch)
    monkeypatch.setattr(scheduler, "LEAD_SECONDS", 0)
    command._rounds(command.caches, in_full=False)
    assert command.unfinished
    command._lead()  # which starts cycles without work
    assert command.unfinished
    command._rounds(command.caches, in_full=False)
    assert state_of(heard[0]) == "assigned"


def test_a_scheduler_that_is_told_to_stop_stops_between_rounds_whatever_happens(
    real_cast: Cast, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, heard = command_that_always_hears(real_cast, kept, monkeypatch)
    command.stopping = True
    command._rounds(command.caches, in_full=False)
    assert heard == []


def test_a_pool_whose_row_is_gone_ends_no_scheduler(real_cast: Cast, kept: Kept) -> None:
    kept.hear()
    Pool.objects.filter(pk=real_cast.pool.pk).delete()
    kept.hear()
    assert kept.cache.pool.name == "default"


def test_a_leader_whose_session_was_replaced_commits_nothing(real_cast: Cast, kept: Kept) -> None:
    Machine("gpu1", real_cast.pool)
    claim = ask(real_cast)
    kept.hear()
    assert kept.session.leads(real_cast.pool)
    connection.close()
    with pytest.raises(NoLongerLeader):
        kept.rounds()
    assert state_of(claim) == "pending"
    assert not claim.assignments.exists()


def test_a_leader_whose_session_was_replaced_says_of_nobody_why_it_waits(real_cast: Cast, kept: Kept) -> None:
    claim = ask(real_cast)
    kept.hear()
    assert kept.session.leads(real_cast.pool)
    connection.close()
    with pytest.raises(NoLongerLeader):
        kept.rounds()
    assert state_of(claim) == "pending"


def test_a_commit_that_loses_a_race_reads_again_what_it_touched_and_goes_on(real_cast: Cast, kept: Kept) -> None:
    machine = Machine("gpu1", real_cast.pool, gpus=2)
    claims = [ask(real_cast, core_request=50) for _ in range(4)]
    kept.hear()
    rival = ask(real_cast, core_request=80)
    stale = PoolCache(real_cast.pool)
    kept.hear()
    release_claim(principal=SYSTEM, claim=claims[0])
    kept.cache.waiting[rival.pk].claim.priority = 9
    for _ in rounds(stale, fence=kept.session.fence):
        pass
    kept.rounds()  # its snapshot is from before the other's placements
    kept.hear()
    assert in_memory(kept.cache) == in_database(real_cast.pool)
    assert machine.gpu(0).core_used <= 100 >= machine.gpu(1).core_used
    assert_books_agree()
