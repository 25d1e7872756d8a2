"""What-ifs of a pool's real history: read, replayed by a task, and shown by the API."""

from datetime import timedelta

import pytest
from django.utils import timezone

from apps.nodes.models import Gpu
from apps.quotas.principals import SYSTEM
from apps.scheduling.core.fair_share import weight_of
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles.rounds import run_round
from apps.whatif import history, services
from apps.whatif.models import WhatIf
from apps.whatif.values import Resize, Size
from tests.cast import GIB, Cast, Machine, ask, placed
from tests.scheduling.clock import Clock

URL = "/api/v1/pools/default/what-if/"


def end(claim: Claim, machine: Machine) -> None:
    release_claim(principal=SYSTEM, claim=claim)
    machine.obey()


def past_hours(cast: Cast, machine: Machine, clock: Clock) -> dict[str, Claim]:
    """Let claims come and go: one is resized, one waits for a whole GPU and gives up, one still runs."""
    begin = clock.now
    first, _ = placed(cast, machine, name="first", core_request=30, memory_mib=4 * GIB)
    clock.advance(hours=1)
    resize_claim(principal=SYSTEM, claim=first, changes=ClaimChanges(core_request=60, core_limit=60))
    machine.obey()
    clock.advance(hours=2)
    placed(cast, machine, name="still", core_request=100, memory_mib=GIB, tenant=cast.globex)
    gives_up = ask(cast, name="gives up", core_request=90, memory_mib=GIB)
    run_round(cast.pool)
    clock.advance(hours=1)
    end(Claim.objects.get(pk=first.pk), machine)
    release_claim(principal=SYSTEM, claim=Claim.objects.get(pk=gives_up.pk))
    clock.advance(hours=4)
    assert clock.now - begin == timedelta(hours=8)
    return {claim.name: claim for claim in Claim.objects.all()}


@pytest.mark.django_db
def test_the_history_is_what_claims_held_and_for_how_long(cast: Cast, machine: Machine, clock: Clock) -> None:
    claims = past_hours(cast, machine, clock)
    now, day = timezone.now(), timedelta(days=1)
    found, left_out = history.read_history(cast.pool, begin=now - day, end=now)
    assert [one.entry.id for one in found] == [str(claims[name].uid) for name in ("first", "still", "gives up")]
    assert left_out == 0
    Gpu.objects.filter(index=1).update(present=False)
    assert len(history.read_site(cast.pool, begin=now - day, end=now).gpus) == 1, "a device that is gone is no capacity"
    first, still, gives_up = found
    assert (first.entry.request.core_request, first.run_seconds) == (30, 4 * 3600)
    assert first.resizes == (Resize(3600, Size(60, 4 * GIB)),)
    assert (still.run_seconds, still.never_ran, still.ran_before) == (None, False, False)
    assert (gives_up.never_ran, gives_up.left_at) == (True, (now - timedelta(hours=4)).timestamp())
    # Of the last six hours, the first claim ran for two, at its later size.
    first, *_ = history.read_history(cast.pool, begin=now - timedelta(hours=6), end=now).claims
    assert (first.ran_before, first.run_seconds, first.resizes) == (True, 2 * 3600, ())
    assert first.entry.request.core_request == 60
    history.read_history(cast.pool, begin=now - timedelta(hours=3), end=now)


@pytest.mark.django_db
def test_more_claims_than_can_be_replayed_leave_the_oldest_out(
    cast: Cast, machine: Machine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    past_hours(cast, machine, clock)
    monkeypatch.setattr(history, "MOST_CLAIMS", 2)
    found, left_out = history.read_history(cast.pool, begin=clock.now - timedelta(days=1), end=clock.now)
    assert (len(found), left_out) == (2, 1)


@pytest.mark.django_db
def test_an_order_runs_once_and_its_figures_are_the_histories(cast: Cast, machine: Machine, clock: Clock) -> None:
    past_hours(cast, machine, clock)
    assert cast.olga.get(URL).body["state"] == "none"
    ordered = cast.olga.post(URL, {"days": 1, "kinds": ["mig", "turns"]})
    assert (ordered.status, ordered.body["state"]) == (202, "pending"), ordered.body
    again = cast.olga.post(URL, {})
    assert (again.status, again.body["type"].rpartition("/")[2]) == (409, "what-if-runs")
    row = WhatIf.objects.get()
    assert services.run(row.pk, str(row.run))
    assert not services.run(row.pk, str(row.run)), "a second task finds nothing to do"
    shown = cast.olga.get(URL).body
    assert (shown["state"], shown["progress_percent"], shown["claims"], shown["kinds"]) == (
        "done",
        100,
        3,
        ["turns", "mig"],
    )
    turns, mig = shown["results"]
    assert (turns["accepted"], turns["left"], turns["resizes"], turns["resizes_refused"]) == (2, 1, 1, 0)
    # 30 % for an hour, 60 for three and 100 for five, of two GPUs over a day.
    assert turns["core_percent"] == round(100 * (30 + 180 + 500) / (200 * 24), 2)
    assert mig["unfit"] == {"no-mig-gpu": 3}, "an A10 has no instances"


@pytest.mark.django_db
def test_fair_shares_are_compared_by_the_waits_of_each_tenant(cast: Cast, machine: Machine, clock: Clock) -> None:
    past_hours(cast, machine, clock)
    assert cast.olga.post(URL, {"days": 1, "kinds": ["fair-share-decayed", "fair-share-current"]}).status == 202
    row = WhatIf.objects.get()
    assert services.run(row.pk, str(row.run))
    current, decayed = cast.olga.get(URL).body["results"]
    assert [one["kind"] for one in (current, decayed)] == ["fair-share-current", "fair-share-decayed"]
    # Of acme one ran at once, and one gave up after an hour.
    assert current["waits"] == [
        {"tenant": "acme", "claims": 2, "mean_seconds": 1800.0, "p95_seconds": 3600.0},
        {"tenant": "globex", "claims": 1, "mean_seconds": 0.0, "p95_seconds": 0.0},
    ]
    # Figures of an older version have no waits.
    older = [{name: value for name, value in one.items() if name != "waits"} for one in WhatIf.objects.get().results]
    WhatIf.objects.update(results=older)
    assert cast.olga.get(URL).body["results"][0]["waits"] == []


@pytest.mark.django_db
def test_the_past_at_the_beginning_of_the_period_comes_from_the_ledger(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    """30 % of a GPU for an hour, 60 % for three, then nothing for four; the half-life is four hours."""
    past_hours(cast, machine, clock)
    cast.pool.change(half_life_seconds=4 * 3600)
    found = history.read_site(cast.pool, begin=clock.now, end=clock.now + timedelta(days=1))
    acme = found.past[str(cast.acme.pk)].core_percent
    by_hand = 30 * (weight_of(-8, -7, at=0, half_life=4)) + 60 * weight_of(-7, -4, at=0, half_life=4)
    assert acme == pytest.approx(by_hand)
    assert not found.remembers


@pytest.mark.django_db
def test_an_order_whose_worker_died_can_be_given_again(cast: Cast, machine: Machine, clock: Clock) -> None:
    lost = services.order_what_if(principal=SYSTEM, pool=cast.pool)
    number = str(lost.run)
    clock.advance(minutes=11)
    again = services.order_what_if(principal=SYSTEM, pool=cast.pool, days=2)
    assert WhatIf.objects.get().days == 2
    assert not services.run(again.pk, number), "the late task of the lost order writes nothing"


@pytest.mark.django_db
def test_a_failure_is_shown_in_words(
    cast: Cast, machine: Machine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = services.order_what_if(principal=SYSTEM, pool=cast.pool)
    WhatIf.objects.update(begin=None)
    with pytest.raises(AssertionError):
        services.run(row.pk, str(row.run))
    shown = cast.olga.get(URL).body
    assert (shown["state"], "worker's log" in shown["words"]) == ("failed", True)


@pytest.mark.django_db
def test_only_operators_order_and_only_for_a_pool_with_gpus(cast: Cast, clock: Clock) -> None:
    assert cast.max.get(URL).status == 403
    assert cast.max.post(URL, {}).status == 403
    refused = cast.olga.post(URL, {})
    assert (refused.status, "has no GPUs" in refused.body["detail"]) == (422, True)
    assert cast.olga.post(URL, {"days": 0}).status == 400
    assert cast.olga.post(URL, {"kinds": ["vgpu"]}).status == 400
