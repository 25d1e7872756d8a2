"""Gangs: all or none, and the times at which members may be placed."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.gangs import place_all, ready, take
from apps.scheduling.core.moments import utc
from apps.scheduling.core.queue import Ask, QueueEntry
from apps.scheduling.core.values import GpuState, Refused, Request

NOW = 1_800_000_000.0


def member(number: int, *, core: int = 50, count: int = 1, size: int = 3, **facts: object) -> QueueEntry:
    values = {"group": "train", "group_size": size, **facts}
    return QueueEntry(f"{number:02}", "acme", Request(count, core, 10), since=number, **values)  # type: ignore[arg-type]


def fleet(nodes: int = 1, gpus: int = 2) -> Fleet:
    return Fleet(
        GpuState(f"{node}-{index}", f"n{node}", index, "A10", 100, 100, 100)
        for node in range(nodes)
        for index in range(gpus)
    )


def test_a_gang_that_is_not_complete_is_not_asked_and_says_how_many_of_it_are_there() -> None:
    asks, early = ready([member(1), member(2)], now=NOW)
    assert asks == []
    assert {refused.reasons[0].code for refused in early.values()} == {"group-incomplete"}
    assert early["01"].reasons[0].detail.startswith("2 of the 3 claims of group train have arrived")


def test_of_more_claims_than_a_gang_has_the_oldest_are_the_gang() -> None:
    asks, early = ready([member(number) for number in (5, 3, 1, 4, 2)], now=NOW)
    assert [[one.id for one in ask.members] for ask in asks] == [["01", "02", "03"]]
    assert set(early) == {"04", "05"}


def test_groups_of_one_name_but_another_tenant_or_size_are_others() -> None:
    asks, early = ready([member(1, size=2), member(2, size=3), member(3, size=2)], now=NOW)
    assert [[one.id for one in ask.members] for ask in asks] == [["01", "03"]]
    foreign = QueueEntry("09", "globex", Request(1, 50, 10), since=9, group="train", group_size=2)
    assert set(ready([member(1, size=2), foreign], now=NOW)[1]) == {"01", "09"}
    assert set(early) == {"02"}


def test_nothing_is_asked_before_its_time_and_a_gang_not_before_its_latest() -> None:
    later = member(2, size=2, start_at=NOW + 60)
    asks, early = ready([member(1, size=2), later, member(3, group=None, start_at=NOW)], now=NOW)
    assert [ask.members[0].id for ask in asks] == ["03"]
    assert {early["01"].reasons[0].code, early["02"].reasons[0].code} == {"not-before"}
    assert "2027-01-15 08:01:00 UTC" in early["02"].reasons[0].detail
    assert len(ready([member(1, size=2), later], now=NOW + 60)[0]) == 1


def test_a_gang_that_does_not_fit_says_how_many_of_it_would_and_takes_nothing() -> None:
    machines = fleet(gpus=1)
    before = machines.gpus()
    answer = place_all(machines, Ask((member(1), member(2), member(3))))
    assert isinstance(answer, Refused)
    assert answer.reasons[0].detail.startswith("2 of the 3 claims of group train fit together now")
    assert answer.reasons[1].code == "gpu-core"
    assert machines.gpus() == before


def test_the_largest_of_a_gang_is_placed_first() -> None:
    """Two small ones would take a half of each GPU, and the large one would have none."""
    gang = Ask((member(1), member(2), member(3, core=100)))
    assert not isinstance(place_all(fleet(), gang), Refused)


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(1, 10)), min_size=1, max_size=6), st.integers(1, 3))
def test_a_gang_is_placed_wholly_within_what_is_free_or_not_at_all(sizes: list[tuple[int, int]], nodes: int) -> None:
    machines = fleet(nodes=nodes)
    before = machines.gpus()
    gang = Ask(tuple(member(number, count=count, core=10 * tenth) for number, (count, tenth) in enumerate(sizes)))
    answer = place_all(machines, gang)
    assert machines.gpus() == before
    if isinstance(answer, Refused):
        assert len(gang.members) > 1 or gang.members[0].request.gpu_count > 2
        return
    assert [len(placed.gpus) for placed in answer] == [one.request.gpu_count for one in gang.members]
    take(machines, gang, answer)
    assert all(gpu.core_free >= 0 and gpu.memory_free_mib >= 0 for gpu in machines.gpus())


@given(st.integers(0, 4_102_444_800))
def test_a_moment_reads_as_the_calendar_has_it(seconds: int) -> None:
    assert utc(seconds + 0.5) == datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
