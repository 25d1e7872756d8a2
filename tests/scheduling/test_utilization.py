"""`GET /utilization/`: any window, in steps that fit it, from any roll-up level."""

from datetime import timedelta
from urllib.parse import urlencode
from uuid import UUID

import pytest

from apps.accounting.services import utilization
from apps.nodes.models import Sample, UsageFrame, UsageMinute, UsageTens
from apps.nodes.services.telemetry import rolling
from tests.cast import MIB_BYTES, Api, Cast, Machine, cast, give_plenty, gpu_uuid, placed
from tests.measurements import keep
from tests.scheduling.clock import START, Clock, clock

__all__ = ["cast", "clock"]


@pytest.fixture
def machine(clock: Clock, cast: Cast) -> Machine:
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool, gpus=1)


def read_series(api: Api, **query: object) -> list[tuple[float, float]]:
    """Return times after the start, and core percent."""
    if "begin" in query:
        query["from"] = (START + timedelta(seconds=float(str(query.pop("begin"))))).isoformat()
    answer = api.get(f"utilization/?{urlencode(query)}")
    assert answer.status == 200, answer.body
    (series,) = answer.body["series"]
    return [(at - START.timestamp(), core) for at, core in zip(series["times"], series["core_percent"], strict=True)]


def measure(machine: Machine, assignment: UUID, seconds: int, core: float = 40) -> None:
    """Store samples from the start, each second; the GPU's use is twice the assignment's."""
    rows = []
    for second in range(seconds):
        at = START + timedelta(seconds=second)
        rows.append(Sample(gpu=machine.gpu(), at=at, core_percent=2 * core, memory_bytes=4 * MIB_BYTES))
        rows.append(Sample(assignment_uid=assignment, at=at, core_percent=core, memory_bytes=2 * MIB_BYTES))
    keep(rows)


def test_without_a_window_the_latest_is_told_with_its_age(cast: Cast, machine: Machine, clock: Clock) -> None:
    claim, assignment = placed(cast, machine)
    measure(machine, assignment.uid, 5)
    clock.advance(seconds=10)
    (series,) = cast.max.get(f"utilization/?claim={claim.uid}").body["series"]
    assert (series["core_percent"], series["memory_mib"], series["age_seconds"]) == ([40], [2], 6)
    (of_gpu,) = cast.olga.get(f"utilization/?gpu={gpu_uuid('gpu1', 0)}").body["series"]
    assert (of_gpu["core_percent"], of_gpu["memory_mib"], of_gpu["core_limit_percent"]) == ([80], [4], [None])


def test_a_window_is_the_same_whether_it_is_rolled_up_or_not(cast: Cast, machine: Machine, clock: Clock) -> None:
    claim, assignment = placed(cast, machine)
    measure(machine, assignment.uid, 150)
    clock.advance(seconds=150)
    before = [read_series(cast.max, claim=claim.uid, begin=7, step=step) for step in (1, 10, 60)]
    assert rolling.roll_up() > 0
    # Whole spans are now read from the roll-ups: the seconds may be deleted.
    UsageFrame.objects.filter(at__gte=START + timedelta(seconds=10), at__lt=START + timedelta(seconds=140)).delete()
    after = [read_series(cast.max, claim=claim.uid, begin=7, step=step) for step in (10, 60)]
    assert after == before[1:]
    assert after[1] == [(0, 40), (60, 40), (120, 40)]


@pytest.fixture
def long_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use few transactions for days without samples: a thousand would test the same."""
    monkeypatch.setattr(rolling, "AT_ONCE", timedelta(days=1))


@pytest.mark.usefixtures("long_transactions")
def test_a_window_of_dropped_seconds_is_told_by_what_is_kept(cast: Cast, machine: Machine, clock: Clock) -> None:
    _, assignment = placed(cast, machine)
    measure(machine, assignment.uid, 120)
    clock.advance(minutes=5)
    rolling.roll_up()
    UsageFrame.objects.all().delete()
    clock.advance(days=2)
    assert read_series(cast.olga, node="gpu1", begin=0, to=(START + timedelta(seconds=60)).isoformat(), step=1) == [
        (second, 80) for second in range(0, 60, 10)
    ]
    UsageTens.objects.all().delete()
    clock.advance(days=2)
    assert read_series(cast.olga, node="gpu1", begin=0, to=(START + timedelta(minutes=2)).isoformat(), step=1) == [
        (0, 80),
        (60, 80),
    ]
    assert UsageMinute.objects.exists()


@pytest.mark.usefixtures("long_transactions")
def test_a_step_is_chosen_that_suits_the_window(cast: Cast, machine: Machine, clock: Clock) -> None:
    claim, assignment = placed(cast, machine)
    measure(machine, assignment.uid, 120)
    clock.advance(minutes=2)
    rolling.roll_up()
    assert len(read_series(cast.max, claim=claim.uid, begin=0)) == 120
    clock.advance(hours=1)
    rolling.roll_up()
    assert len(read_series(cast.max, claim=claim.uid, begin=0)) == 12
    clock.advance(days=7)
    rolling.roll_up()
    assert read_series(cast.max, claim=claim.uid, begin=0) == [(0, 40)]


def test_more_points_than_an_answer_holds_are_refused_with_how_many_it_does(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    claim, _ = placed(cast, machine)
    clock.advance(days=1)
    query = urlencode({"claim": claim.uid, "from": START.isoformat(), "step": 1})
    answer = cast.max.get(f"utilization/?{query}")
    assert (answer.status, answer.code, answer.body["max_points"]) == (422, "window-too-long", 5000)


def test_what_would_take_too_long_to_read_is_refused_with_what_to_do(
    cast: Cast, machine: Machine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, assignment = placed(cast, machine)
    measure(machine, assignment.uid, 120)
    clock.advance(hours=3)
    rolling.roll_up()
    monkeypatch.setattr(utilization, "MAX_READ", 100)
    query = {"claim": claim.uid, "from": START.isoformat()}
    refused = cast.max.get(f"utilization/?{urlencode({**query, 'step': 60})}")
    assert (refused.status, refused.code) == (422, "window-too-long")
    assert "leave out `step`" in refused.body["detail"]
    # One hour and a partial one: the chosen step is read from few rows.
    assert read_series(cast.max, claim=claim.uid, begin=0) == [(0, 40)]


def test_series_that_a_node_shares_are_told_apart(cast: Cast, machine: Machine, clock: Clock) -> None:
    mine, others = placed(cast, machine)[1], placed(cast, machine, name="b")[1]
    measure(machine, mine.uid, 60, core=20)
    keep([
        Sample(assignment_uid=others.uid, at=START + timedelta(seconds=at), core_percent=70, memory_bytes=1)
        for at in range(30)
    ])  # fmt: skip
    clock.advance(minutes=2)
    rolling.roll_up()
    query = urlencode({"tenant": "acme", "from": START.isoformat(), "step": 60})
    found = {one["assignment"]: one for one in cast.max.get(f"utilization/?{query}").body["series"]}
    assert {uid: one["core_percent"] for uid, one in found.items()} == {str(mine.uid): [20], str(others.uid): [70]}
    assert read_series(cast.olga, node="gpu1", begin=0, step=60) == [(0, 40)]
