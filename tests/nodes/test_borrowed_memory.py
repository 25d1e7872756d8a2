"""Borrowed memory in telemetry: stored by the second, rolled up, and read as curves."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone
from msgspec import UNSET

from agent import wire
from apps.accounting.services import utilization
from apps.nodes.models import Gpu, UsageDay, UsageFrame, UsageHour, UsageMinute, UsageTens
from apps.nodes.models.rolled import WHOLE_GPU
from apps.nodes.services.telemetry import rolling
from apps.nodes.services.telemetry.plausible import drop_implausible
from apps.nodes.services.telemetry.storing import Measured, source_of, store
from apps.scheduling.models import Assignment
from tests.cast import Cast, Machine, cast, give_plenty, gpu_uuid, placed

__all__ = ["cast"]

START = datetime(2026, 6, 15, 11, 58, tzinfo=UTC)
MIB = 1 << 20


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


def borrowed(borrowed_mib: int, out_mib: int, *, moved_mib: int = 0, stood: float = 0.0) -> wire.BorrowedMemory:
    return wire.BorrowedMemory(
        borrowed_bytes=borrowed_mib * MIB,
        out_bytes=out_mib * MIB,
        moved_bytes=moved_mib * MIB,
        moved_bytes_per_second=float(moved_mib * MIB),
        stood_ms=10 * stood,
        stood_percent=stood,
    )


def usage(at: datetime, of: dict[Assignment, wire.BorrowedMemory | None]) -> wire.Usage:
    facts: dict[str, Any] = {"core_percent": 10, "core_limit_percent": 60, "throttled_percent": 0, "processes": 1}
    return wire.Usage(
        seq=int(at.timestamp() * 1000),
        at=at.timestamp(),
        gpus=[wire.GpuUsage(uuid=gpu_uuid("gpu1", 0), core_percent=10, memory_bytes=900 * MIB)],
        assignments=[
            wire.AssignmentUsage(
                uid=str(one.uid), memory_bytes=300 * MIB, memory_limit_bytes=800 * MIB, borrowed=found or UNSET, **facts
            )
            for one, found in of.items()
        ],
    )


def measure(machine: Machine, *frames: dict[Assignment, wire.BorrowedMemory | None]) -> None:
    """Store a frame for each second."""
    source = source_of(machine.node)
    store([Measured(source, usage(START + timedelta(seconds=at), of)) for at, of in enumerate(frames)])


def curve(of: Assignment | Gpu, step: int) -> dict[str, Any]:
    times: dict[str, Any] = {"start": START, "end": START + timedelta(minutes=2), "step_seconds": step}
    (found,) = utilization.of_gpus([of], **times) if isinstance(of, Gpu) else utilization.of_assignments([of], **times)
    return found


def test_it_is_read_by_the_second_and_the_gpu_has_the_sum(cast: Cast, machine: Machine, clock: Clock) -> None:
    (_, one), (_, other), (_, owner) = (placed(cast, machine, core_request=10) for _ in range(3))
    clock.now = START + timedelta(seconds=30)
    measure(
        machine,
        {one: borrowed(200, 0), other: borrowed(50, 0), owner: None},
        {one: borrowed(80, 120, moved_mib=120, stood=12.5), other: borrowed(50, 0), owner: None},
    )
    found = curve(one, 1)
    assert (found["borrowed_mib"], found["memory_out_mib"]) == ([200, 80], [0, 120])
    assert (found["moved_mib_per_second"], found["stood_percent"]) == ([0, 120], [0, 12.5])
    assert curve(machine.gpu(), 1)["borrowed_mib"] == [250, 130]
    assert "memory_out_mib" not in curve(machine.gpu(), 1)


def test_who_borrows_nothing_has_no_such_numbers(cast: Cast, machine: Machine, clock: Clock) -> None:
    _, owner = placed(cast, machine)
    clock.now = START + timedelta(seconds=30)
    measure(machine, {owner: None}, {owner: None})
    for of in (owner, machine.gpu()):
        assert {"borrowed_mib", "memory_out_mib", "moved_mib_per_second", "stood_percent"}.isdisjoint(curve(of, 1))
    frame = UsageFrame.objects.first()
    assert frame is not None
    assert (frame.gpu_borrowed, frame.borrowed, frame.memory_out, frame.moved, frame.stood) == (None,) * 5


def test_each_level_has_its_means_and_its_most(cast: Cast, machine: Machine, clock: Clock) -> None:
    (_, borrower), (_, owner) = (placed(cast, machine, core_request=10) for _ in range(2))
    clock.now = START + timedelta(minutes=63)
    inside = [{borrower: borrowed(200, 0), owner: None}] * 60
    leaving = [{borrower: borrowed(80, 120, moved_mib=2, stood=5.0), owner: None}] * 60
    measure(machine, *inside, *leaving)
    rolling.roll_up()
    columns = ("borrowed", "borrowed_most", "memory_out", "memory_out_most", "moved", "stood")

    def rows(model: Any, uid: Any) -> list[tuple[Any, ...]]:
        return list(model.objects.filter(uid=uid).order_by("at").values_list(*columns))

    first, second = (200, 200, 0, 0, 0, 0), (80, 80, 120, 120, 2, 5)

    def in_mib(row: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*(one / MIB for one in row[:5]), row[5])

    assert [in_mib(row) for row in rows(UsageTens, borrower.uid)] == [first] * 6 + [second] * 6
    assert [in_mib(row) for row in rows(UsageMinute, borrower.uid)] == [first, second]
    # 11:58 and 11:59.
    assert [in_mib(row) for row in rows(UsageHour, borrower.uid)] == [(140, 200, 60, 120, 1, 2.5)]
    assert {row for model in (UsageTens, UsageMinute, UsageHour) for row in rows(model, owner.uid)} == {(None,) * 6}
    assert [row[0] / MIB for row in rows(UsageMinute, WHOLE_GPU)] == [200, 80]
    assert not UsageDay.objects.exists()
    assert curve(borrower, 60)["memory_out_mib"] == [0, 120]
    assert curve(machine.gpu(), 60)["borrowed_mib"] == [200, 80]


def test_more_than_the_gpu_has_is_not_stored(cast: Cast, machine: Machine, clock: Clock) -> None:
    (_, one), (_, forger) = (placed(cast, machine, core_request=10) for _ in range(2))
    frame = usage(START, {one: borrowed(10, 10), forger: borrowed(10, 1 << 40)})
    kept = drop_implausible(source_of(machine.node), frame)
    assert [item.uid for item in kept.assignments] == [str(one.uid)]
