"""Prices of models for requests that fit others too, and nodes whose CPU and GPUs run out together."""

from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.placement.fragmentation import Left
from apps.scheduling.core.placement.mix import Type
from apps.scheduling.core.placement.prices import Machine, model_prices
from apps.scheduling.core.values import GpuState, NodeState, Placed, Request

MACHINES = frozenset({Machine("A10", 2, 64_000), Machine("H100", 8, 96_000), Machine("L4", 8, None)})
IDLE = {"A10": 1000, "H100": 1000, "L4": 2000}


def kind(*models: str, gpus: int = 1, cpu_milli: int = 0) -> Type:
    return Type(gpus, 100, 0, cpu_milli, models)


def test_a_model_costs_what_insists_on_it_over_its_part_of_what_is_idle() -> None:
    assert model_prices(((kind("A10"), 1), (kind(), 3)), IDLE, MACHINES) == {"A10": 1000, "H100": 0, "L4": 0}
    assert model_prices(((kind("A10"), 1), (kind(), 3)), {**IDLE, "A10": 500}, MACHINES)["A10"] == 1750


def test_what_few_machines_could_carry_insists_on_them() -> None:
    prices = model_prices(((kind(gpus=8, cpu_milli=80_000), 1), (kind(), 8)), IDLE, MACHINES)
    assert prices["A10"] == 0
    assert prices["H100"] > 0
    # Unknown facts of a machine exclude nothing.
    assert prices["L4"] > 0


def test_demand_for_several_models_goes_to_those_that_are_asked_for_less() -> None:
    prices = model_prices(((kind("A10"), 2), (kind("A10", "H100"), 2), (kind(), 4)), IDLE, MACHINES)
    assert abs(prices["A10"] - prices["H100"]) < 150  # shared by idle capacity they would be 1500 and 500


def test_what_can_be_carried_anywhere_or_nowhere_makes_nothing_dear() -> None:
    assert set(model_prices(((kind(), 5), (kind("none"), 5)), IDLE, MACHINES).values()) == {0}
    assert set(model_prices((), IDLE, MACHINES).values()) == {0}


def test_balance_is_counted_only_where_the_machine_is_known() -> None:
    idle = ((100, 8, "A10"), (0, 8, "A10"))
    assert Left(32_000, idle, 64_000).imbalance(100) == 0
    assert Left(64_000, idle, 64_000).imbalance(100) == 2 * 512**2
    assert Left(64_000, idle).imbalance(100) == Left(None, idle, 64_000).imbalance(100) == 0


def test_requests_that_need_no_model_leave_the_one_that_others_insist_on() -> None:
    gpus = [
        GpuState(f"{node}{index}", node, index, model, 0, 100, 0)
        for node, model in (("a", "A10"), ("b", "L4"))
        for index in (0, 1)
    ]
    any_will_do, insists = Request(1, 50, 0), Request(1, 50, 0, "A10")
    fleet = Fleet(gpus, [NodeState("a"), NodeState("b")], mix=[(any_will_do, 5), (insists, 5)])
    assert fleet.place(any_will_do) == Placed(("b0",))
    assert Fleet(gpus, mix=[(any_will_do, 5)]).place(any_will_do) == Placed(("a0",))
