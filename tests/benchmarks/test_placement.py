"""The benchmark of placement quality, on a trace small enough to check by hand."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.placement.__main__ import main
from benchmarks.placement.power import Meter
from benchmarks.placement.room import Room, Wrong
from benchmarks.placement.runs import POLICIES, allocated
from benchmarks.placement.trace import Ask, Machine, Trace, draw

MACHINES = [Machine(8000, 64, 2, "T4"), Machine(8000, 64, 2, "T4"), Machine(4000, 64, 1, "A10")]
ASKS = [
    Ask(1000, 1, 1, 500, ""),
    Ask(1000, 1, 1, 500, ""),
    Ask(2000, 1, 1, 1000, "A10|T4"),
    Ask(2000, 1, 2, 1000, ""),
    Ask(500, 1, 0, 0, ""),
]


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    nodes = ["sn,cpu_milli,memory_mib,gpu,model"] + [f"n{at},{','.join(map(str, m))}" for at, m in enumerate(MACHINES)]
    asks = ["name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"] + [
        f"p{at},{','.join(map(str, ask))}" for at, ask in enumerate(ASKS)
    ]
    (tmp_path / "openb_node_list_gpu_node.csv").write_text("\n".join(nodes) + "\n")
    (tmp_path / "openb_pod_list_tiny.csv").write_text("\n".join(asks) + "\n")
    monkeypatch.setenv("GPUCLOUD_TRACES", str(tmp_path))
    return tmp_path


def test_without_data_it_says_which_and_whose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUCLOUD_TRACES", raising=False)
    with pytest.raises(SystemExit, match=r"openb_pod_list_\*\.csv .* openb trace"):
        Trace.found()


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_fills_what_can_be_filled(policy: str) -> None:
    # The checker verifies each answer; requests for six and a half GPUs arrive at five.
    for seed in range(5):
        given = allocated(draw(MACHINES, ASKS, seed), ASKS, policy)
        assert 40 <= given[max(given)].percent <= 100


def test_power_follows_the_gpus_and_packages_in_use() -> None:
    """Idle: four T4s, an A10, three packages. Half of a T4 wakes it and its package, the other half nothing."""
    meter = Meter(MACHINES)
    assert meter.watts == 4 * 10 + 30 + 3 * 20
    for watts in (70 - 10 + 165 - 20, 0):
        before = meter.watts
        meter.take(Ask(1000, 1, 1, 500, ""), 0, [1])
        assert meter.watts - before == watts


def test_arrivals_are_the_whole_list_and_then_some_of_it() -> None:
    order, arriving = draw(MACHINES, ASKS, 3)
    assert sorted(order) == sorted(MACHINES)
    assert sorted(arriving[: len(ASKS)]) == sorted(ASKS)
    assert 5500 < sum(ask.milli for ask in arriving) <= 7500


def test_the_checker_sees_what_is_given_twice_and_what_is_refused_though_it_fits() -> None:
    room = Room(MACHINES)
    room.take(Ask(1000, 1, 1, 600, ""), 0, [0])
    with pytest.raises(Wrong, match="more than is free"):
        room.take(Ask(1000, 1, 1, 600, ""), 0, [0])
    with pytest.raises(Wrong, match="fits on node 0"):
        room.refuse(Ask(1000, 1, 1, 1000, "T4"))
    room.refuse(Ask(1000, 1, 2, 1000, "A10"))


def test_draws_made_elsewhere_take_the_place_of_the_seeds(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draws, out = traces / "draws.jsonl", traces / "rows.jsonl"
    one = {"list": "tiny", "seed": 42, "nodes": ["n2", "n0", "n1"], "requests": ["p2", "p3", "p3", "p2"]}
    draws.write_text(json.dumps(one) + "\n")
    recorded = Trace.found().recorded(draws)["tiny", 42]
    assert recorded.order == [MACHINES[2], MACHINES[0], MACHINES[1]]
    assert recorded.arriving == [ASKS[2], ASKS[3], ASKS[3], ASKS[2]]
    monkeypatch.setattr(sys, "argv", ["placement", "--seeds", "43", "--arrivals", str(draws), "--out", str(out)])
    with pytest.raises(SystemExit, match=r"no draw of \('tiny', 43\)"):
        main()


def test_rows_name_list_policy_arrivals_and_seeds(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = traces / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["placement", "--seeds", "1,4-5", "--policies", "gpucloud", "--out", str(out)])
    main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows
    assert all(row.keys() >= {"list", "policy", "arrived", "allocated_percent", "seeds"} for row in rows)
    assert {(row["list"], row["policy"], tuple(row["seeds"])) for row in rows} == {("tiny", "gpucloud", (1, 4, 5))}
