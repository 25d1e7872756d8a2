"""Past use from the ledger: exact, in any number of runs, once; and what rounds make of it."""

import random
import threading
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from apps.accounting import tasks
from apps.accounting.services import past_use
from apps.quotas.models import Pool, Tenant
from apps.quotas.models.pool import FairShare
from apps.quotas.principals import SYSTEM
from apps.scheduling.core.fair_share import weight_of
from apps.scheduling.models import Claim, PastUse, PastUseMark
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles.queue import get_snapshot
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import GIB, Cast, Machine, ask, give_plenty, placed
from tests.matrix import seeds
from tests.racing import outcomes, race
from tests.scheduling.clock import Clock

DAY = 86_400
LATER = past_use.SETTLED


@pytest.fixture
def machine(clock: Clock, cast: Cast) -> Machine:
    """Create one GPU of 24 GiB, no limiting quota, and fair share that remembers with a half-life of a day."""
    give_plenty(cast.acme, cast.globex)
    remember(cast.pool)
    return Machine("gpu1", cast.pool, gpus=1)


def remember(pool: Pool, half_life: int = DAY) -> None:
    pool.change(fair_share=FairShare.DECAYED, half_life_seconds=half_life)


def averages(pool: Pool) -> dict[str, tuple[float, float]]:
    rows = PastUse.objects.filter(pool=pool).values_list("tenant__slug", "core_percent", "memory_mib")
    return {slug: (core, memory) for slug, core, memory in rows}


def end(machine: Machine, claim: Claim) -> None:
    release_claim(principal=SYSTEM, claim=Claim.objects.get(pk=claim.pk))
    machine.obey()


def test_a_day_of_half_a_gpu_counts_half_and_a_day_later_a_quarter(clock: Clock, cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine, core_request=50, memory_mib=8 * GIB)
    clock.advance(hours=24)
    end(machine, claim)
    assert past_use.settle(cast.pool, now=clock.now + LATER) == 1
    assert list(averages(cast.pool)) == [cast.acme.slug]
    assert averages(cast.pool)[cast.acme.slug] == pytest.approx((25, 4 * GIB))
    clock.advance(hours=24)
    past_use.settle(cast.pool, now=clock.now + LATER)
    assert averages(cast.pool)[cast.acme.slug] == pytest.approx((12.5, 2 * GIB))


@pytest.mark.parametrize("seed", seeds(3))
def test_any_history_counts_as_its_closed_form_however_many_runs_count_it(
    clock: Clock, cast: Cast, machine: Machine, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311
    begun = clock.now
    live: list[tuple[Claim, str]] = []
    pieces: list[tuple[str, int, datetime, datetime]] = []
    since: dict[int, datetime] = {}
    for _ in range(20):
        if live and chance.random() < 0.4:
            claim, slug = live.pop(chance.randrange(len(live)))
            pieces.append((slug, claim.core_request, since.pop(claim.pk), clock.now))
            end(machine, claim)
        elif live and chance.random() < 0.5:
            claim, slug = live[0]
            pieces.append((slug, claim.core_request, since[claim.pk], clock.now))
            changes = ClaimChanges(core_request=max(1, claim.core_request - 3), core_limit=claim.core_limit)
            resize_claim(principal=SYSTEM, claim=Claim.objects.get(pk=claim.pk), changes=changes)
            machine.obey()
            claim.refresh_from_db()
            since[claim.pk] = clock.now
        else:
            tenant = chance.choice([cast.acme, cast.globex])
            claim, _ = placed(cast, machine, core_request=chance.randint(2, 5), memory_mib=GIB, tenant=tenant)
            live.append((claim, tenant.slug))
            since[claim.pk] = clock.now
        clock.advance(seconds=chance.randint(60, 40_000))
        if chance.random() < 0.5:
            past_use.settle(cast.pool)
    pieces += [(slug, claim.core_request, since[claim.pk], clock.now) for claim, slug in live]
    past_use.settle(cast.pool, now=clock.now + LATER)
    expected: dict[str, float] = {}
    for slug, core, first, last in pieces:
        seconds = ((first - begun).total_seconds(), (last - begun).total_seconds())
        weight = weight_of(*seconds, at=(clock.now - begun).total_seconds(), half_life=DAY)
        expected[slug] = expected.get(slug, 0) + core * weight
    found = {slug: core for slug, (core, _) in averages(cast.pool).items()}
    assert found == pytest.approx(expected, rel=1e-6)


def test_another_half_life_counts_all_the_past_again(clock: Clock, cast: Cast, machine: Machine) -> None:
    placed(cast, machine, core_request=40, memory_mib=GIB)
    clock.advance(hours=24)
    past_use.settle(cast.pool, now=clock.now + LATER)
    remember(cast.pool, DAY // 2)
    past_use.settle(cast.pool, now=clock.now + LATER)
    assert averages(cast.pool)[cast.acme.slug][0] == pytest.approx(30)


def test_a_mark_that_a_fast_clock_left_in_the_future_is_counted_anew(
    clock: Clock, cast: Cast, machine: Machine
) -> None:
    placed(cast, machine, core_request=40, memory_mib=GIB)
    clock.advance(hours=24)
    past_use.settle(cast.pool, now=clock.now + timedelta(days=30))
    assert past_use.settle(cast.pool, now=clock.now + LATER) == 1
    assert averages(cast.pool)[cast.acme.slug][0] == pytest.approx(20)


def test_an_error_of_the_rows_lasts_a_day_at_most(clock: Clock, cast: Cast, machine: Machine) -> None:
    placed(cast, machine, core_request=40, memory_mib=GIB)
    clock.advance(hours=1)
    past_use.settle(cast.pool)
    PastUse.objects.update(core_percent=1000)
    clock.advance(hours=23)
    past_use.settle(cast.pool)
    assert averages(cast.pool)[cast.acme.slug][0] > 100
    clock.advance(hours=2)
    past_use.settle(cast.pool, now=clock.now + LATER)
    expected = 40 * weight_of(0, 26, at=26, half_life=24)
    assert averages(cast.pool)[cast.acme.slug][0] == pytest.approx(expected)


def test_a_run_that_is_killed_has_done_nothing(
    clock: Clock, cast: Cast, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed(cast, machine, core_request=40, memory_mib=GIB)
    clock.advance(hours=1)
    past_use.settle(cast.pool)
    before = averages(cast.pool)
    clock.advance(hours=23)

    def die(*args: Any, **facts: Any) -> int:
        add(*args, **facts)
        raise SystemExit

    add = past_use.add
    monkeypatch.setattr(past_use, "add", die)
    with pytest.raises(SystemExit):
        past_use.settle(cast.pool)
    assert averages(cast.pool) == before
    monkeypatch.undo()
    monkeypatch.setattr(timezone, "now", clock)
    past_use.settle(cast.pool, now=clock.now + LATER)
    assert averages(cast.pool)[cast.acme.slug][0] == pytest.approx(20)


def test_only_pools_that_remember_are_counted(clock: Clock, cast: Cast, machine: Machine) -> None:
    placed(cast, machine, core_request=40, memory_mib=GIB)
    clock.advance(hours=1)
    Pool.objects.update(fair_share=FairShare.CURRENT)
    assert tasks.settle_past_use() == 0
    assert not PastUseMark.objects.exists()
    Pool.objects.update(fair_share=FairShare.DECAYED)
    assert tasks.settle_past_use() == 1


def test_the_lighter_past_user_is_placed_first(clock: Clock, cast: Cast, machine: Machine) -> None:
    """Its claim came later; in a pool that forgets, age decides."""
    heavy, _ = placed(cast, machine, core_request=100, memory_mib=GIB)
    clock.advance(hours=24)
    end(machine, heavy)
    past_use.settle(cast.pool, now=clock.now + LATER)
    older = ask(cast, core_request=60, memory_mib=GIB)
    newer = ask(cast, core_request=60, memory_mib=GIB, tenant=cast.globex)
    assert list(get_snapshot(cast.pool).positions) == [str(newer.uid), str(older.uid)]
    forgets = Pool.objects.get(pk=cast.pool.pk)
    forgets.fair_share = FairShare.CURRENT
    assert list(get_snapshot(forgets).positions) == [str(older.uid), str(newer.uid)]
    cast.pool.refresh_from_db()
    run_round(cast.pool)
    states = dict(Claim.objects.values_list("uid", "state"))
    assert (states[newer.uid], states[older.uid]) == ("assigned", "queued")


def test_the_choice_and_its_bounds(cast: Cast) -> None:
    """A new pool does as before; the API sets both fields, within bounds."""
    body = cast.olga.get("pools/default/").body
    assert (body["fair_share"], body["half_life_seconds"]) == ("current", 604_800)
    assert cast.olga.patch("pools/default/", {"fair_share": "decayed", "half_life_seconds": 3600}).status == 200
    for wrong in ({"half_life_seconds": 3599}, {"half_life_seconds": 31_536_001}, {"fair_share": "fair"}):
        answer = cast.olga.patch("pools/default/", wrong)
        assert (answer.status, answer.code) == (400, "invalid-fields"), answer.body


def test_rows_of_an_older_version_have_the_defaults(cast: Cast) -> None:
    """A server of the version before writes pools without these columns."""
    unset = {"id", "name", "fair_share", "half_life_seconds", "uid", "natural_name"}
    columns = [field.column for field in Pool._meta.concrete_fields if field.column and field.column not in unset]
    with connection.cursor() as cursor:
        names = ", ".join(columns)
        cursor.execute(f"INSERT INTO quotas_pool (name, {names}) SELECT 'old', {names} FROM quotas_pool LIMIT 1")  # noqa: S608
    old = Pool.objects.get(name="old")
    assert (old.fair_share, old.half_life_seconds) == ("current", 7 * DAY)


RACERS = 8


@pytest.fixture
def yesterday(clock: Clock, real_cast: Cast) -> Cast:
    """Place a claim of 40 %, and count 22 of its 24 hours."""
    give_plenty(real_cast.acme)
    remember(real_cast.pool)
    placed(real_cast, Machine("gpu1", real_cast.pool, gpus=1), core_request=40, memory_mib=GIB)
    past_use.settle(real_cast.pool, now=clock.advance(hours=22) + LATER)
    clock.advance(hours=2)
    return real_cast


def race_at(pool: Pool, now: datetime) -> float:
    results = race([partial(past_use.settle, pool, now=now)] * RACERS)
    assert outcomes(results) == {"int": RACERS}, results
    return averages(pool)["acme"][0]


@pytest.mark.django_db(transaction=True)
def test_runs_at_once_count_each_moment_once(yesterday: Cast) -> None:
    now = timezone.now()
    expected = 40 * weight_of(0, 24, at=24, half_life=24)
    assert race_at(yesterday.pool, now + LATER) == pytest.approx(expected)


@pytest.mark.django_db(transaction=True)
def test_without_the_marks_lock_they_count_it_several_times(yesterday: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: nobody adds before everybody has read the mark."""
    gate = threading.Barrier(RACERS)

    def unlocked(pool: Pool, half_life: int) -> PastUseMark:
        mark = PastUseMark.objects.get(pool=pool)
        gate.wait(timeout=30)
        return mark

    monkeypatch.setattr(past_use, "lock_mark", unlocked)
    now = timezone.now()
    expected = 40 * weight_of(0, 24, at=24, half_life=24)
    assert race_at(yesterday.pool, now + LATER) > 1.1 * expected


def test_everyone_reads_the_standing_of_their_tenants(clock: Clock, cast: Cast, machine: Machine) -> None:
    """Acme held 100 % for a day, globex 50 % for the next one; the half-life is a day, the weights are equal."""
    for tenant, core in ((cast.acme, 100), (cast.globex, 50)):
        claim, _ = placed(cast, machine, core_request=core, memory_mib=GIB, tenant=tenant)
        clock.advance(hours=24)
        end(machine, claim)
    past_use.settle(cast.pool, now=clock.now + LATER)
    waits = ask(cast, core_request=30, memory_mib=GIB)
    body = cast.olga.get("pools/default/fair-share/").body
    assert (body["fair_share"], body["half_life_seconds"], body["counted_to"][:10]) == ("decayed", DAY, "2026-06-17")
    first, second = body["tenants"]
    numbers = [
        (row["tenant"], row["waiting"], row["past_gpus"], row["share_percent"], row["usage_percent"], row["factor"])
        for row in (first, second)
    ]
    assert numbers == [
        ("acme", 1, pytest.approx(0.25), 50, pytest.approx(50), pytest.approx(0.5)),
        ("globex", 0, pytest.approx(0.25), 50, pytest.approx(50), pytest.approx(0.5)),
    ]
    assert [row["tenant"] for row in cast.anna.get("pools/default/fair-share/").body["tenants"]] == ["acme"]
    document = cast.anna.get(f"claims/{waits.uid}/").body
    assert document["fair_share"] == (
        "Tenant acme holds 0.00 GPUs and held 0.25 on average (half-life 1 d): 25.0 % of the pool for each unit of its "
        "weight of 1; no other waiting tenant has less"
    )
    Tenant.objects.filter(pk=cast.globex.pk).update(weight=2)
    ask(cast, core_request=30, memory_mib=GIB, tenant=cast.globex)
    assert cast.anna.get(f"claims/{waits.uid}/").body["fair_share"].endswith("; a tenant with less goes first")
    assert cast.olga.get("pools/none/fair-share/").status == 404


def test_a_pool_that_forgets_shows_what_is_held_now(cast: Cast) -> None:
    give_plenty(cast.acme)
    claim, _ = placed(cast, Machine("gpu1", cast.pool, gpus=1), core_request=50, memory_mib=GIB)
    body = cast.olga.get("pools/default/fair-share/").body
    assert (body["fair_share"], body["counted_to"]) == ("current", None)
    (row,) = body["tenants"]
    assert (row["tenant"], row["held_gpus"], row["order_percent"], row["factor"]) == ("acme", 0.5, 50, 1)
    assert cast.anna.get(f"claims/{claim.uid}/").body["fair_share"] is None
