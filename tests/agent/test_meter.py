"""Reported use: differences of counters, divided where claims share a GPU without turns."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from agent.claims.meter import Meter
from agent.claims.usage import Totals

GPU = UUID(int=1)


def runtime(uid: str, gpu_time_ms: float, gpu: UUID = GPU) -> Any:
    slot = SimpleNamespace(assignment_uid=uid, gpu=gpu, memory_bytes=1 << 30)
    totals = {gpu: Totals(gpu_time_ns=int(gpu_time_ms * 1e6))}
    return SimpleNamespace(slots={0: slot}, totals=totals, alone_percent=lambda _uid: 100)


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
