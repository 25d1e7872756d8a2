"""The linear program beside the placement benchmark gives the exact bound of small cases."""

import random

import pytest

from benchmarks.placement.bound import Bound
from benchmarks.placement.room import Room
from benchmarks.placement.trace import Ask, Machine


def machine(gpus: int, model: str = "A100", cpu: int = 64_000) -> Machine:
    return Machine(cpu, 1 << 20, gpus, model)


def part(milli: int, models: str = "", cpu: int = 1000) -> Ask:
    return Ask(cpu, 0, 1, milli, models)


def test_what_no_pattern_fills_stays_idle() -> None:
    assert Bound([machine(1)]).percent([part(400)] * 3) == pytest.approx(80)


def test_different_sizes_fill_one_gpu() -> None:
    assert Bound([machine(1)]).percent([part(400), part(400), part(200)]) == pytest.approx(100)


def test_a_request_is_served_on_its_models_only() -> None:
    bound = Bound([machine(1, "A100"), machine(1, "T4")])
    assert bound.percent([part(1000, "T4")] * 5) == pytest.approx(50)
    assert bound.percent([part(1000, "T4|A100")] * 5) == pytest.approx(100)


def test_several_gpus_are_of_one_node() -> None:
    ask = Ask(1000, 0, 4, 1000, "")
    assert Bound([machine(2), machine(2)]).percent([ask]) == pytest.approx(0)
    assert Bound([machine(4)]).percent([ask]) == pytest.approx(100)


def test_cpu_that_is_used_up_bounds_too() -> None:
    assert Bound([machine(4, cpu=2000)]).percent([part(1000)] * 4) == pytest.approx(50)


def test_best_fit_never_passes_it() -> None:
    for seed in range(5):
        draw = random.Random(seed)  # noqa: S311 - a case that can be made again
        machines = [machine(draw.choice((1, 2, 4)), draw.choice(("A100", "T4"))) for _ in range(6)]
        asks = [part(draw.choice((250, 300, 450, 700, 1000)), draw.choice(("", "", "T4"))) for _ in range(60)]
        room, given = Room(machines), 0
        for ask in asks:
            if (placed := room.best_fit(ask)) is not None:
                room.take(ask, *placed)
                given += ask.milli
        bound = Bound(machines).percent(asks)
        assert given / sum(one.gpus for one in machines) / 10 <= bound + 1e-6 <= 100.001
