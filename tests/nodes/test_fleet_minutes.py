"""Minutes of the fleet: summed once, again for late frames, with unchanged allocations."""

from datetime import timedelta

import pytest
from django.conf import settings

from apps.nodes.models import FleetMinute, Gpu
from apps.nodes.services.telemetry import fleet, partitions, rolling
from tests.cast import Cast, Machine, cast, give_plenty, placed
from tests.nodes.test_roll_ups import START, Clock, clock, measure

__all__ = ["cast", "clock"]


@pytest.fixture
def machine(clock: Clock, cast: Cast) -> Machine:
    give_plenty(cast.acme)
    return Machine("gpu1", cast.pool, gpus=2)


def test_a_minute_is_the_mean_of_what_was_measured_beside_what_was_promised(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    placed(cast, machine, core_request=30)
    clock.now = START + timedelta(seconds=65)
    measure(machine, START, *([40] * 60))
    rolling.roll_up()
    minute = FleetMinute.objects.get(at=START)
    # One of the two GPUs was measured; use and allocation are parts of both.
    assert (minute.gpus, minute.core_used, minute.core_leased) == (1, 20, 15)
    assert minute.memory_leased is not None
    assert minute.memory_leased > 0


def test_late_frames_count_again_and_leave_what_was_promised(cast: Cast, machine: Machine, clock: Clock) -> None:
    clock.now = START + timedelta(seconds=65)
    measure(machine, START, *([40] * 30))
    rolling.roll_up()
    Gpu.objects.update(core_used=80)
    clock.now = START + timedelta(minutes=10)
    measure(machine, START + timedelta(seconds=30), *([80] * 30))
    rolling.roll_up()
    minute = FleetMinute.objects.get(at=START)
    assert (minute.core_used, minute.core_leased) == (30, 0)


def test_of_a_minute_that_is_made_up_for_nobody_says_what_was_promised(machine: Machine, clock: Clock) -> None:
    measure(machine, START, *([40] * 60))
    clock.now = START + timedelta(minutes=30)
    rolling.roll_up()
    assert FleetMinute.objects.get(at=START).core_leased is None


def test_steps_are_means_and_old_minutes_are_dropped(machine: Machine, clock: Clock) -> None:
    clock.now = START + timedelta(minutes=4)
    for number, core in enumerate((10.0, 20.0, 60.0)):
        at = START + timedelta(minutes=number)
        FleetMinute.objects.create(at=at, gpus=2, core_used=core, memory_used=1, core_leased=50, memory_leased=None)
    found = fleet.history(begin=START, step=timedelta(minutes=2))
    assert found["core_used"] == [15, 60]
    assert found["times"] == [START.timestamp(), (START + timedelta(minutes=2)).timestamp()]
    assert found["memory_leased"] == [None, None]
    clock.now = START + timedelta(days=settings.TELEMETRY_MINUTES_DAYS, minutes=1)
    partitions.keep_up()
    assert FleetMinute.objects.count() == 2
