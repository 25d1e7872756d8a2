"""Reported use: differences of counters, divided where claims share a GPU without turns."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from msgspec import UNSET

from agent import wire
from agent.claims.meter import Counted, Meter
from agent.claims.usage import Moved, Totals

GPU = UUID(int=1)


def runtime(uid: str, gpu_time_ms: float, gpu: UUID = GPU, *, moved: Moved | None = None, memory: int = 0) -> Any:
    borrowing = None if moved is None else wire.Borrowing(memory_request_bytes=1 << 20, host_memory_bytes=1 << 30)
    slot = SimpleNamespace(assignment_uid=uid, gpu=gpu, memory_bytes=1 << 30, borrowing=borrowing)
    totals = {gpu: Totals(gpu_time_ns=int(gpu_time_ms * 1e6), memory_bytes=memory)}
    at_all = {} if moved is None else {gpu: moved}
    return SimpleNamespace(slots={0: slot}, totals=totals, moved=at_all, alone_percent=lambda _uid: 100)


def reported_percent(*claims: tuple[str, float], gpus: tuple[UUID, ...] = ()) -> dict[str, float]:
    """Return the percent reported for each claim after a second in which its counter grew by so many milliseconds."""
    meter = Meter()
    where = dict(zip((uid for uid, _ in claims), gpus, strict=False))
    meter.read({uid: runtime(uid, 0, where.get(uid, GPU)) for uid, _ in claims}, now=10.0)
    after = {uid: runtime(uid, grown, where.get(uid, GPU)) for uid, grown in claims}
    return {usage.uid: usage.core_percent for usage in meter.read(after, now=11.0)}


def test_claims_that_the_driver_slices_share_the_time_that_both_were_measured_with() -> None:
    shares = reported_percent(("a", 840), ("b", 970))
    assert sum(shares.values()) == pytest.approx(100, abs=0.1)
    assert shares["a"] / shares["b"] == pytest.approx(840 / 970, abs=0.01)


def test_claims_that_together_use_less_than_the_gpu_are_reported_as_measured() -> None:
    assert reported_percent(("a", 295), ("b", 693)) == {"a": 29.5, "b": 69.3}


def test_a_claim_alone_on_its_gpu_is_reported_as_measured() -> None:
    assert reported_percent(("a", 840), ("b", 970), gpus=(UUID(int=1), UUID(int=2))) == {"a": 84.0, "b": 97.0}


def test_a_forged_counter_takes_no_more_than_half_of_what_an_honest_claim_is_reported_with() -> None:
    assert reported_percent(("forger", 1e9), ("honest", 900))["honest"] == pytest.approx(47.4, abs=0.1)


def test_borrowed_memory_is_told_with_what_moved_since_the_last_sample() -> None:
    meter = Meter()
    meter.read({"b": runtime("b", 0, moved=Moved(0, 7 << 20, 50_000_000), memory=5 << 20)}, now=10.0)
    (found,) = meter.read({"b": runtime("b", 0, moved=Moved(3 << 20, 10 << 20, 100_000_000), memory=2 << 20)}, now=12.0)
    assert found.borrowed == wire.BorrowedMemory(
        borrowed_bytes=1 << 20,
        out_bytes=3 << 20,
        moved_bytes=3 << 20,
        moved_bytes_per_second=(3 << 20) / 2,
        stood_ms=50.0,
        stood_percent=2.5,
    )
    assert meter.counted == {"b": Counted(3 << 20, 50_000_000)}


def test_sums_of_a_borrower_do_not_fall_when_its_process_ends() -> None:
    meter = Meter()
    for at, moved in enumerate((0, 5 << 20, 0, 2 << 20)):
        meter.read({"b": runtime("b", 0, moved=Moved(0, moved, 0))}, now=10.0 + at)
    assert meter.counted["b"].moved_bytes == 7 << 20


def test_a_forged_page_has_no_more_out_than_its_limit() -> None:
    (found,) = Meter().read({"b": runtime("b", 0, moved=Moved(1 << 60, 0, 0))}, now=10.0)
    assert found.borrowed is not UNSET
    assert found.borrowed.out_bytes == 1 << 30


def test_who_borrows_nothing_is_told_as_before() -> None:
    (found,) = Meter().read({"a": runtime("a", 0)}, now=10.0)
    assert found.borrowed is UNSET
