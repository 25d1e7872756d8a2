"""The condition of a claim whose borrowed memory is in host memory."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from msgspec import UNSET

from agent import wire
from apps.scheduling.models import Assignment
from tests.cast import MIB_BYTES, Cast, Machine, cast, give_plenty, gpu_uuid, placed
from tests.measurements import tell

__all__ = ["cast"]


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme)
    return Machine("gpu1", cast.pool, gpus=1)


class Agent:
    """An agent that tells what of each assignment is in host memory, a frame for each call."""

    def __init__(self, machine: Machine) -> None:
        self._machine, self._seq = machine, 0

    def tells(self, out_mib: dict[Assignment, int | None]) -> None:
        self._seq += 1
        facts: dict[str, Any] = {"core_percent": 1, "core_limit_percent": 60, "throttled_percent": 0, "processes": 1}
        facts |= {"memory_bytes": 0, "memory_limit_bytes": 0}
        items = [
            wire.AssignmentUsage(uid=str(one.uid), borrowed=UNSET if mib is None else borrowed(mib), **facts)
            for one, mib in out_mib.items()
        ]
        gpus = [wire.GpuUsage(uuid=gpu_uuid("gpu1", 0), core_percent=1, memory_bytes=0)]
        tell(self._machine.node, wire.Usage(seq=self._seq, at=time.time(), gpus=gpus, assignments=items))


def borrowed(out_mib: int) -> wire.BorrowedMemory:
    return wire.BorrowedMemory(
        borrowed_bytes=0,
        out_bytes=out_mib * MIB_BYTES,
        moved_bytes=0,
        moved_bytes_per_second=0.0,
        stood_ms=0.0,
        stood_percent=0.0,
    )


def conditions(cast: Cast, assignment: Assignment) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cast.max.get(f"claims/{assignment.claim.uid}/").body["conditions"]
    return found


def test_a_claim_stands_aside_while_memory_of_it_is_out(cast: Cast, machine: Machine) -> None:
    (_, borrower), (_, owner) = (placed(cast, machine, core_request=10) for _ in range(2))
    agent = Agent(machine)
    agent.tells({borrower: 0, owner: None})
    assert conditions(cast, borrower) == []
    agent.tells({borrower: 4096, owner: None})
    (condition,) = conditions(cast, borrower)
    assert condition["type"] == "memory-out"
    assert condition["detail"].startswith("4 GiB are in host memory, because others of its GPUs use theirs")
    assert conditions(cast, owner) == []
    # More leaves: it lasts since the first, and has the new amount.
    agent.tells({borrower: 8192, owner: None})
    (later,) = conditions(cast, borrower)
    assert (later["since"], later["detail"][:5]) == (condition["since"], "8 GiB")
    (shown,) = cast.max.get(f"claims/{borrower.claim.uid}/").body["assignments"]
    assert (shown["memory_out_mib"], shown["memory_out_since"]) == (8192, condition["since"])
    agent.tells({borrower: 0, owner: None})
    assert conditions(cast, borrower) == []


def test_an_amount_that_hardly_changes_is_not_stored_each_second(cast: Cast, machine: Machine) -> None:
    _, borrower = placed(cast, machine)
    agent = Agent(machine)
    for mib in (1000, 1100, 900, 1126):
        agent.tells({borrower: mib})
    borrower.refresh_from_db()
    assert borrower.memory_out_mib == 1126


def test_a_node_tells_nothing_of_assignments_that_it_does_not_carry(cast: Cast, machine: Machine) -> None:
    _, borrower = placed(cast, machine)
    Agent(Machine("gpu2", cast.pool, gpus=1)).tells({borrower: 4096})
    assert conditions(cast, borrower) == []


def test_a_released_claim_has_no_condition(cast: Cast, machine: Machine) -> None:
    claim, borrower = placed(cast, machine)
    Agent(machine).tells({borrower: 4096})
    cast.max.delete(f"claims/{claim.uid}/")
    machine.obey()
    assert conditions(cast, borrower) == []


def test_many_marks_are_one_statement(
    cast: Cast, machine: Machine, django_assert_max_num_queries: Callable[..., AbstractContextManager[Any]]
) -> None:
    rows = [placed(cast, machine, core_request=5, memory_mib=64)[1] for _ in range(8)]
    agent = Agent(machine)
    agent.tells(dict.fromkeys(rows, 0))
    # Two of a savepoint, the rows known, the rows locked, the update; beside what a frame without marks takes.
    with django_assert_max_num_queries(20):
        agent.tells(dict.fromkeys(rows, 4096))
    assert Assignment.objects.filter(memory_out_mib=4096).count() == len(rows)
