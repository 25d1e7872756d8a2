"""A fleet in memory: labels, selectors, machines, reserved capacity, placements and releases."""

from dataclasses import replace

import pytest

from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.placement import native
from apps.scheduling.core.values import SHARING_GROUP, GpuState, Label, NodeState, Placed, Refused, Request

HALF = Request(1, 50, 8, tenant="acme")


def gpu(node: str = "a", index: int = 0, *, core: int = 100, memory: int = 24) -> GpuState:
    return GpuState(f"{node}{index}", node, index, "A10", 24, core, memory)


def fleet(*gpus: GpuState, nodes: tuple[NodeState, ...] = ()) -> Fleet:
    return Fleet(gpus or (gpu("a", 0), gpu("a", 1), gpu("b", 0)), nodes, policy="binpack")


def start(fleet: Fleet, request: Request) -> tuple[str, ...]:
    answer = fleet.place(request)
    assert isinstance(answer, Placed), answer
    fleet.take(answer.gpus, request)
    return answer.gpus


def codes(answer: Placed | Refused) -> list[tuple[str, int]]:
    assert isinstance(answer, Refused)
    return [(reason.code, reason.gpus) for reason in answer.reasons]


def test_what_is_taken_is_gone_and_comes_back() -> None:
    pool = fleet()
    before = pool.gpus()
    labelled = replace(HALF, affinity="x", anti_affinity="y", exclusion="z")
    placed = start(pool, labelled)
    assert pool.gpus() != before
    pool.give_back(placed, labelled)
    assert pool.gpus() == before


def test_some_gpus_stand_as_all_do() -> None:
    """In the same order, with what was taken since, and without those that it does not have."""
    pool = fleet()
    assert start(pool, HALF) == ("a0",)
    some = pool.some_gpus({"b0", "a0", "gone"})
    assert list(some) == [one for one in pool.gpus() if one.uuid != "a1"]
    assert [one.core_free for one in some] == [50, 100]


def test_asking_changes_nothing() -> None:
    pool = fleet()
    assert pool.place(HALF) == pool.place(HALF)


def test_claims_of_one_affinity_label_share_a_gpu() -> None:
    pool = fleet(gpu(index=0), gpu(index=1, core=60))
    alike = replace(HALF, core_request=30, affinity="pair")
    first = start(pool, alike)
    assert start(pool, replace(HALF, core_request=70)) != first
    assert start(pool, alike) == first


def test_an_affinity_label_waits_for_its_gpu_rather_than_going_elsewhere() -> None:
    pool = fleet()
    alike = replace(HALF, affinity="trio")
    assert start(pool, alike) == start(pool, alike)
    assert codes(pool.place(alike)) == [("gpu-core", 1), ("affinity", 2)]


def test_claims_of_one_anti_affinity_label_never_share_a_gpu() -> None:
    pool = fleet()
    apart = replace(HALF, anti_affinity="replica")
    assert {start(pool, apart) for _ in range(3)} == {("a0",), ("a1",), ("b0",)}
    assert codes(pool.place(apart)) == [("anti-affinity", 3)]


def test_an_exclusion_label_keeps_everyone_else_out() -> None:
    pool = fleet(gpu())
    alone = replace(HALF, core_request=20, exclusion="quiet")
    assert start(pool, alone) == start(pool, alone)
    assert codes(pool.place(HALF)) == [("exclusion", 1)]
    assert codes(pool.place(replace(alone, exclusion="loud"))) == [("exclusion", 1)]
    assert codes(pool.place(replace(alone, tenant="globex"))) == [("exclusion", 1)]


def test_an_exclusion_label_does_not_move_in_with_claims_that_have_none() -> None:
    pool = fleet(gpu())
    placed = start(pool, HALF)
    alone = replace(HALF, exclusion="quiet")
    assert codes(pool.place(alone)) == [("exclusion", 1)]
    pool.give_back(placed, HALF)
    assert pool.place(alone) == Placed(placed)


@pytest.mark.parametrize("label", ["affinity", "anti_affinity"])
def test_the_same_word_of_another_tenant_is_another_label(label: str) -> None:
    pool = fleet(gpu(), gpu("b"))
    request = Request(1, 40, 8, tenant="acme", **{label: "x"})  # type: ignore[arg-type]
    other = replace(request, tenant="globex")
    start(pool, request)
    assert start(pool, replace(other, affinity=None, anti_affinity=None)) == ("a0",)
    assert pool.place(other) == fleet(gpu(core=20, memory=8), gpu("b")).place(other)


def test_a_label_goes_with_the_last_claim_that_has_it() -> None:
    pool = fleet(gpu())
    alone = replace(HALF, core_request=20, exclusion="quiet")
    placed = [start(pool, alone), start(pool, alone)]
    pool.give_back(placed[0], alone)
    assert codes(pool.place(HALF)) == [("exclusion", 1)]
    pool.give_back(placed[1], alone)
    assert pool.place(HALF) == Placed(("a0",))


def test_a_selector_takes_nodes_that_have_all_of_its_labels() -> None:
    nodes = (NodeState("a", labels=(("zone", "1"),)), NodeState("b", labels=(("zone", "1"), ("net", "ib"))))
    pool = fleet(nodes=nodes)
    assert pool.place(replace(HALF, node_selector=(("net", "ib"), ("zone", "1")))) == Placed(("b0",))
    assert codes(pool.place(replace(HALF, node_selector=(("zone", "2"),)))) == [("node-selector", 3)]


def test_a_machine_has_so_much_cpu_and_ram_where_that_is_known() -> None:
    pool = fleet(nodes=(NodeState("a", cpu_milli_free=4000, ram_mib_free=64), NodeState("b", ram_mib_free=8)))
    large = replace(HALF, cpu_milli=3000, ram_mib=16)
    placed = start(pool, large)
    assert placed == ("a0",)
    assert codes(pool.place(large)) == [("node-cpu", 2), ("node-ram", 1)]
    pool.give_back(placed, large)
    assert pool.place(large) == Placed(placed)


def test_what_is_held_for_others_is_not_counted_on() -> None:
    pool = fleet(gpu(index=0, core=50), gpu(index=1))
    assert pool.place(HALF) == Placed(("a0",))
    assert pool.place(HALF, held={"a0": (10, 0)}) == Placed(("a1",))
    assert codes(pool.place(HALF, held={"a0": (10, 0), "a1": (0, 20)})) == [("reserved", 2)]


def test_one_of_several_models_will_do() -> None:
    pool = fleet()
    assert pool.place(replace(HALF, gpu_model="H100|A10")) == Placed(("a0",))
    assert codes(pool.place(replace(HALF, gpu_model="H100"))) == [("gpu-model", 3)]


def test_gpus_and_nodes_come_change_and_go() -> None:
    pool = fleet(gpu())
    pool.set_gpu(gpu("b", 0, core=50))
    assert pool.place(HALF) == Placed(("b0",))
    pool.set_gpu(replace(gpu("b", 0, core=50), schedulable=False))
    assert pool.place(HALF) == Placed(("a0",))
    pool.set_gpu(gpu("b", 0, core=50))
    pool.remove_gpu("b0")
    assert [state.uuid for state in pool.gpus()] == ["a0"]
    pool.set_node(NodeState("a", cpu_milli_free=0))
    assert codes(pool.place(replace(HALF, cpu_milli=1))) == [("node-cpu", 1)]


@pytest.mark.parametrize("backend", ["python", *(["c"] if native.LIBRARY else [])])
def test_gpus_without_claims_of_other_sharing_groups_are_preferred_and_never_required(backend: str) -> None:
    pool = Fleet([gpu(), gpu("b")], policy="binpack", backend=backend)
    quarter = replace(HALF, core_request=25, memory_mib=1)
    mine, other = (replace(quarter, sharing_group=name) for name in ("mine", "other"))
    assert pool.place_many([mine, other, mine, other]) == [Placed((name,)) for name in ("a0", "b0", "a0", "b0")]
    assert pool.place(quarter) == Placed(("a0",)), "who has no group goes to the fullest"
    third = replace(quarter, sharing_group="third")
    assert pool.place(third) == Placed(("a0",)), "there is no other place"
    assert pool.place(mine, held={"a0": (50, 0)}) == Placed(("b0",)), "reserved room stays reserved"
    pool.give_back_many([(("b0",), other), (("b0",), other)])
    assert pool.place(third) == Placed(("b0",))
    # Read again, a GPU may have another group than its claims were placed with.
    pool.set_gpu(replace(gpu(core=50), labels=(Label(SHARING_GROUP, "", "other"),)))
    pool.give_back(("a0",), mine)
    assert pool.place(other) == Placed(("a0",))
    assert not GpuState("c0", "c", 0, "A10", 8, 0, 8).could_help(third), "a preference never lets a claim in"


@pytest.mark.parametrize("backend", ["python", *(["c"] if native.LIBRARY else [])])
def test_what_is_used_twice_is_not_free_when_one_of_them_goes(backend: str) -> None:
    over = replace(gpu(core=0, memory=16), core_over=40)
    pool = Fleet([over, gpu("b", core=0)], [NodeState("a", cpu_milli_free=0)], policy="binpack", backend=backend)
    victim = replace(HALF, core_request=80, memory_mib=8, cpu_milli=2)
    before = pool.gpus()
    assert codes(pool.place(replace(HALF, core_request=1))) == [("gpu-core", 2)]
    pool.give_back(("a0",), victim)
    assert codes(pool.place(replace(HALF, core_request=41))) == [("gpu-core", 2)]
    assert pool.place(replace(HALF, core_request=40, cpu_milli=2)) == Placed(("a0",))
    pool.take(("a0",), victim)
    assert pool.gpus() == before
    pool.give_back_many([(("a0",), victim), (("b0",), HALF)])
    assert [(one.core_free, one.core_over) for one in pool.gpus()] == [(40, 0), (50, 0)]
    pool.set_gpu(gpu(core=0, memory=16))
    pool.give_back(("a0",), victim)
    assert pool.gpus()[0].core_free == 80
