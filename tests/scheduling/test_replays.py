"""Replays: a recorded round can be decided again with the same result."""

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db.models import F

from apps.quotas.principals import SYSTEM
from apps.scheduling import tasks
from apps.scheduling.models import FleetSnapshot, Round
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.cycles import records
from apps.scheduling.services.cycles.replays import gpus_seen
from apps.scheduling.services.cycles.rounds import rounds, run_round
from apps.whatif.rounds import replay, replay_with
from tests.cast import Cast, Machine, ask, give_plenty
from tests.scheduling.life import Kept, Life

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def kept(real_cast: Cast) -> Kept:
    give_plenty(real_cast.acme)
    return Kept(real_cast.pool)


def replay_round(number: int, **options: str) -> str:
    out = StringIO()
    call_command("replay_round", str(number), stdout=out, **options)
    return out.getvalue()


def test_every_round_of_a_changing_pool_is_replayed_as_it_was(
    real_cast: Cast, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MOST_ROUNDS", 5)
    life = Life(real_cast, kept, seed=5)
    seen = {}
    for _ in range(60):
        life.step()
        kept.hear()
        before = kept.cache.fleet.gpus()
        for done in rounds(kept.cache, fence=kept.session.fence):
            if done is not None:
                seen[done.pk] = before
            before = kept.cache.fleet.gpus()
    recorded = list(Round.objects.all())
    assert len(recorded) > 8
    assert FleetSnapshot.objects.count() > 1
    for done in recorded:
        assert all(item.agrees for item in replay(done))
        if done.pk in seen:
            assert gpus_seen(done) == seen[done.pk]
        assert "as it was recorded" in replay_round(done.pk)


def recorded_round(cast: Cast) -> Round:
    give_plenty(cast.acme)
    Machine("gpu1", cast.pool, gpus=2)
    Machine("gpu2", cast.pool, gpus=2)
    for core in (40, 40, 100, 100, 100):
        ask(cast, core_request=core)
    done = run_round(cast.pool)
    assert done is not None
    done.refresh_from_db()
    return done


def test_control_a_record_that_says_another_thing_is_found_out(real_cast: Cast) -> None:
    done = recorded_round(real_cast)
    assert "as it was recorded" in replay_round(done.pk)
    first = next(step for step in done.steps if "claim" in step)
    first["gpus"] = [gpu.uuid for gpu in gpus_seen(done) if gpu.uuid not in first["gpus"]][-1:]
    done.save()
    with pytest.raises(CommandError, match="differ from the record"):
        replay_round(done.pk)


def test_another_policy_says_what_it_would_have_done(real_cast: Cast) -> None:
    done = recorded_round(real_cast)
    spread = replay_with(done, "spread")
    assert sum("gpus" in item.then for item in spread) == 5  # the two of 40 share a GPU
    assert spread[0].now["gpus"] != spread[1].now["gpus"]
    assert "spread would have placed 4" in replay_round(done.pk, policy="spread")


def test_a_round_that_is_not_there_is_said_so(real_cast: Cast) -> None:
    with pytest.raises(CommandError, match="no round 17"):
        replay_round(17)


def test_rounds_share_a_snapshot_and_hold_only_what_changed(real_cast: Cast, kept: Kept) -> None:
    for number in range(3):
        Machine(f"gpu{number}", real_cast.pool)
    claim = ask(real_cast)
    kept.hear()
    kept.rounds()
    ask(real_cast)
    release_claim(principal=SYSTEM, claim=claim)
    kept.hear()
    kept.rounds()
    second, first = Round.objects.all()
    assert first.base_id == second.base_id
    assert sum("gpu" in step for step in first.steps) == 12
    assert len(second.steps) == 2  # the arrivals, and the requests


def test_rounds_are_dropped_after_a_week_together_with_what_they_are_replayed_from(real_cast: Cast) -> None:
    give_plenty(real_cast.acme)
    Machine("gpu1", real_cast.pool)
    for _ in range(2):
        ask(real_cast)
        run_round(real_cast.pool)
    week = timedelta(days=7, hours=1)
    FleetSnapshot.objects.update(at=F("at") - week)
    old, young = Round.objects.order_by("pk")
    Round.objects.filter(pk=old.pk).update(at=old.at - week)
    tasks.drop_old_rounds()
    assert list(Round.objects.values_list("pk", flat=True)) == [young.pk]
    assert list(FleetSnapshot.objects.values_list("pk", flat=True)) == [young.base_id]
