"""Roll-ups of telemetry: idempotent, late frames counted, windows read from levels that fit."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from agent import wire
from apps.nodes.models import LateFrames, TelemetryMark, UsageDay, UsageFrame, UsageHour, UsageMinute, UsageTens
from apps.nodes.models.rolled import WHOLE_GPU
from apps.nodes.services.telemetry import levels, rolling
from apps.nodes.services.telemetry.levels import DAY, HOUR, MINUTE, RAW, ROLLED, TENS, segments
from apps.nodes.services.telemetry.storing import Measured, source_of, store
from tests.cast import Cast, Machine, cast, give_plenty, gpu_uuid, placed

__all__ = ["cast"]

START = datetime(2026, 6, 15, 11, 58, tzinfo=UTC)
SPAN = {UsageTens: 10, UsageMinute: 60, UsageHour: 3600, UsageDay: 86400}


class Clock:
    now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timezone, "now", clock)
    return clock


@pytest.fixture
def machine(clock: Clock, cast: Cast) -> Machine:
    give_plenty(cast.acme)
    return Machine("gpu1", cast.pool, gpus=1)


def usage(at: datetime, core: float, *uids: str) -> wire.Usage:
    facts: dict[str, Any] = {
        "core_limit_percent": 60,
        "throttled_percent": 5,
        "memory_limit_bytes": 2048,
        "processes": 1,
    }
    return wire.Usage(
        seq=int(at.timestamp() * 1000),
        at=at.timestamp(),
        gpus=[wire.GpuUsage(uuid=gpu_uuid("gpu1", 0), core_percent=core, memory_bytes=1024, temperature_celsius=core)],
        assignments=[
            wire.AssignmentUsage(uid=uid, core_percent=core, memory_bytes=int(core * 10), **facts) for uid in uids
        ],
    )


def measure(machine: Machine, begin: datetime, *cores: float, uids: tuple[str, ...] = ()) -> None:
    """Store one sample each second."""
    source = source_of(machine.node)
    store([Measured(source, usage(begin + timedelta(seconds=at), core, *uids)) for at, core in enumerate(cores)])


def rows(model: Any) -> list[tuple[Any, ...]]:
    fields = ("at", "gpu_id", "uid", "samples", "core", "core_most", "memory", "gpu_time_ms", "celsius_most")
    return list(model.objects.order_by("at", "gpu_id", "uid").values_list(*fields))


def test_each_level_is_the_mean_of_what_is_below_it(cast: Cast, machine: Machine, clock: Clock) -> None:
    _, assignment = placed(cast, machine)
    uid = str(assignment.uid)
    clock.now = START + timedelta(minutes=3)
    measure(machine, START, *([20] * 60), *([50] * 60), uids=(uid,))
    rolling.roll_up()
    minutes = [row for row in rows(UsageMinute) if row[2] == assignment.uid]
    gpu = machine.gpu().pk
    # The very first second has none before it.
    assert minutes == [
        (START, gpu, assignment.uid, 60, 20, 20, 200, 59 * 200, None),
        (START + timedelta(minutes=1), gpu, assignment.uid, 60, 50, 50, 500, 60 * 500, None),
    ]
    (hour,) = [row for row in rows(UsageHour) if row[2] == assignment.uid]
    assert hour == (START - timedelta(minutes=58), gpu, assignment.uid, 120, 35, 50, 350, 59 * 200 + 60 * 500, None)
    of_gpu = [row for row in rows(UsageMinute) if row[2] == WHOLE_GPU]
    assert [(row[0], row[4], row[8]) for row in of_gpu] == [(START, 20, 20), (START + timedelta(minutes=1), 50, 50)]
    assert {len(rows(UsageTens)), len(rows(UsageDay))} == {24, 0}


def test_a_run_that_comes_twice_changes_nothing(machine: Machine, clock: Clock) -> None:
    clock.now = START + timedelta(minutes=3)
    measure(machine, START, *range(100))
    assert rolling.roll_up() > 0
    before = {model: rows(model) for model in SPAN}
    assert rolling.roll_up() == 0
    # As if it had died before it recorded its progress.
    TelemetryMark.objects.filter(name="rolled").update(at=START)
    assert rolling.roll_up() > 0
    assert {model: rows(model) for model in SPAN} == before


def test_what_comes_late_is_rolled_up_again_at_every_level(machine: Machine, clock: Clock) -> None:
    clock.now = START + timedelta(minutes=3)
    measure(machine, START, *([10] * 30))
    rolling.roll_up()
    measure(machine, START + timedelta(seconds=30), *([30] * 30))
    assert LateFrames.objects.exists()
    rolling.roll_up()
    assert [(row[3], row[4]) for row in rows(UsageMinute)] == [(60, 20)]
    assert [(row[3], row[4]) for row in rows(UsageHour)] == [(60, 20)]
    assert not LateFrames.objects.exists()


def test_frames_in_any_order_and_runs_at_any_time_give_the_same_roll_ups(machine: Machine, clock: Clock) -> None:
    cores = [float(number % 17) for number in range(150)]
    clock.now = START + timedelta(minutes=5)
    measure(machine, START, *cores)
    rolling.roll_up()
    straight = {model: rows(model) for model in SPAN}
    models: tuple[Any, ...] = (*SPAN, UsageFrame, LateFrames, TelemetryMark)
    for model in models:
        model.objects.all().delete()
    for part in (3, 0, 4, 1, 2):
        clock.now = START + timedelta(seconds=30 * part + 40)
        first = 30 * part
        measure(machine, START + timedelta(seconds=first), *cores[first : first + 30])
        rolling.roll_up()
    clock.now = START + timedelta(minutes=5)
    rolling.roll_up()
    # Except the first second after late frames, whose duration is known only once they are there.
    assert {model: [row[:7] for row in rows(model)] for model in SPAN} == {
        model: [row[:7] for row in found] for model, found in straight.items()
    }


moments = st.integers(0, 40 * 86400).map(lambda second: levels.EPOCH + timedelta(seconds=second))
kept = st.sampled_from([[RAW, *ROLLED], [RAW, TENS, MINUTE], [TENS, MINUTE, HOUR], [HOUR, DAY], [RAW]])


@given(moments, moments, moments, kept)
def test_segments_touch_and_lie_on_whole_spans(begin: datetime, end: datetime, rolled: datetime, of: list[Any]) -> None:
    found = segments(begin, end, of, rolled=rolled)
    assert all(one.end == two.begin for one, two in pairwise(found))
    for one in found:
        assert one.begin < one.end
        if one.level is not RAW:
            assert one.begin == levels.floor(one.begin, one.level.span)
            assert one.end == levels.floor(one.end, one.level.span) <= max(rolled, one.begin)
    if RAW in of and begin < end:
        assert (found[0].begin, found[-1].end) == (begin, end)
