"""``make bench-shim`` on the simulated driver: the figures mean little, but they exist and are plausible."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.shim.gaps import Sampler
from benchmarks.shim.parts import mps_live
from benchmarks.shim.parts.matrix import Figures, judge

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.timeout(300)


def measure_parts(out: Path, *parts: str) -> dict[str, Any]:
    """Return every part's JSON, by its name."""
    command = [sys.executable, "-m", "benchmarks.shim", *parts, "--simulated", "--quick", "--seconds", "1"]
    subprocess.run([*command, "--out", str(out)], cwd=ROOT, check=True, timeout=240, stdout=subprocess.DEVNULL)
    return {part["part"]: part for part in json.loads((out / "results.json").read_text())}


def as_limited(rows: list[dict[str, Any]]) -> bool:
    return all(abs(float(row["page − limit"])) < 2 and float(row["rate / limit"]) > 0.9 for row in rows)


@pytest.mark.alone
def test_a_share_is_measured_by_the_page_and_by_the_program_itself(tmp_path: Path) -> None:
    # A busy machine lowers a share: it is measured again.
    for _ in range(2):
        rows = measure_parts(tmp_path, "share")["share"]["tables"][0]["rows"]
        if as_limited(rows):
            break
    else:
        rows = measure_parts(tmp_path, "share")["share"]["tables"][0]["rows"]
        assert as_limited(rows)
    assert [row["limit"] for row in rows] == [10, 25, 50, 75, 90]


def test_no_way_to_allocate_that_the_simulated_driver_has_passes_the_limit(tmp_path: Path) -> None:
    ways, race, views = measure_parts(tmp_path, "memory")["memory"]["tables"]
    plain = next(row for row in ways["rows"] if row["way"] == "plain")
    assert plain["refused with"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert plain["bare, NVML"] > 8192
    assert not [row for row in [*ways["rows"], *race["rows"]] if row["over limit"]]
    assert race["rows"][0]["refused"] > 0
    assert {row["MiB"] for row in views["rows"] if "otal" in row["asked"]} == {4096.0}


def test_clients_of_mps_are_measured_at_their_memory_limit_and_its_daemon_is_asked(tmp_path: Path) -> None:
    found = measure_parts(tmp_path, "mps-memory", "mps-probe")
    rows = found["mps-memory"]["tables"][0]["rows"]
    assert [row["over limit"] for row in rows] == [0, 0, 0]
    assert [row["page"] for row in rows if row["way"] != "none"] == [4096, 4096]
    assert "ACTIVE" in {row["answer"] for row in found["mps-probe"]["tables"][0]["rows"]}


def test_a_changed_limit_is_in_force_with_the_first_window_near_the_share_at_which_it_settles() -> None:
    sampler = Sampler({})
    sampler.times = [number * 0.002 for number in range(300)]
    # 60 % for 20 ms, nothing for 40 ms, then 10 %.
    shares = [60] * 10 + [0] * 20 + [10] * 270
    sampler._read["it"] = [sum(shares[:number]) * 20_000 for number in range(300)]
    change = mps_live.judge(sampler, 60, 10, 0.0)
    assert round(change.settled) == 10
    # The first window of 50 ms with no more than 7.5 ms at the old limit.
    assert change.begins_ms == 8
    assert change.ends_ms == change.begins_ms + 50


def test_each_result_says_on_what_machine_it_was_measured(tmp_path: Path) -> None:
    found = measure_parts(tmp_path, "calls")["calls"]
    assert "simulated" in found["machine"]["gpu"]
    assert "kernel launch" in (tmp_path / "calls.md").read_text()


def test_a_part_that_does_not_exist_is_refused_by_its_name() -> None:
    command = [sys.executable, "-m", "benchmarks.shim", "nonsense"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "nonsense" in done.stderr


def test_parts_that_need_pytorch_are_skipped_on_the_simulated_driver(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.shim", "foreign", "beside", "tail", "--simulated"]
    done = subprocess.run([*command, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.count("skipped, it needs PyTorch") == 3


@pytest.mark.alone
def test_a_limit_that_is_moved_is_seen_to_be_in_force_soon_after(tmp_path: Path) -> None:
    moves, _, memory = measure_parts(tmp_path, "change")["change"]["tables"]
    # At least 20 ms: the first window cannot end sooner. A busy machine delays it.
    assert all(20 <= row["median, ms"] < 300 for row in moves["rows"] if "page" in row["change"])
    assert "runs on, is refused" in memory["rows"][1]["the program"]
    assert (tmp_path / "change-moves.svg").read_text().startswith("<svg")


BARE = Figures(share=80.0, rate=8000.0)


@pytest.mark.parametrize(
    ("limit", "share", "rate", "broken"),
    [
        (50, 50.0, 5000.0, ()),
        (50, 44.0, 4900.0, ("starved",)),
        (50, 51.5, 5000.0, ("above",)),
        (50, 48.0, 4700.0, ("slow",)),
        (50, 2.0, 200.0, ("starved", "slow")),
        # It wants 80 % and no more, so all of its launches must run.
        (90, 80.0, 8000.0, ()),
        (90, 70.0, 7000.0, ("slow",)),
    ],
)
def test_a_cell_of_the_matrix_is_judged_by_what_the_program_wants_and_by_its_limit(
    limit: int, share: float, rate: float, broken: tuple[str, ...]
) -> None:
    assert judge(limit, BARE, Figures(share, rate), page=float(limit)).broken == broken


def test_several_processes_whose_kernels_spin_on_while_they_wait_are_scaled_to_the_whole_gpu() -> None:
    judged = judge(50, Figures(share=150.0, rate=3000.0), Figures(share=75.0, rate=1500.0), page=50.0, processes=3)
    assert judged.share == pytest.approx(50.0)
    assert not judged.broken


@pytest.mark.alone
def test_a_program_of_the_matrix_is_measured_at_every_limit_after_a_bare_run(tmp_path: Path) -> None:
    # A busy machine lowers a share: it is measured again. One kind of kernels: others are the library's tests.
    matrix = measure_parts(tmp_path, "matrix")["matrix"]
    for _ in range(2):
        if matrix["tables"][0]["rows"][0]["broken"]:
            matrix = measure_parts(tmp_path, "matrix")["matrix"]
    (row,) = matrix["tables"][0]["rows"]
    (raw,) = matrix["raw"].values()
    assert [cell["limit"] for cell in raw["cells"]] == [10, 25, 50, 75, 90, 100]
    assert row["bare share"] > 80
    assert row["broken"] == 0
    assert all(abs(cell["page"] - cell["share"]) < 6 for cell in raw["cells"])


@pytest.mark.alone
def test_a_stopped_or_ended_arbiter_or_tenant_is_a_row_that_says_how_long_each_waited(tmp_path: Path) -> None:
    rows = measure_parts(tmp_path, "stops")["stops"]["tables"][0]["rows"]
    assert {row["event"].partition(" SIG")[0] for row in rows} == {
        "none", "arbiter", "who holds the turn:", "who waits for it:",
    }  # fmt: skip
    undisturbed = rows[0]
    assert undisturbed["A, share"] < undisturbed["B, share"]
    assert undisturbed["nobody"] < undisturbed["A, page"] < 1000
    # Limits of an arbiter that died or stands still are ignored after 0.2 s. With the earlier second, nothing ran for
    # 0.85.
    gaps = [row["nobody"] for row in rows if row["window"] in {"without an arbiter", "stopped"}]
    assert gaps
    assert max(gaps) < 600
    # It forgets debts after its own pause: A, of 30 %, got 0 to 12 before.
    after = [row for row in rows if row["window"] == "first second after"]
    assert after
    assert all(row["A, share"] > 15 for row in after)
    killed = next(row for row in rows if row["event"] == "who holds the turn: SIGKILL")
    # B was killed: its own gap lasts to the end of the window.
    assert killed["B, page"] > 900
    assert killed["A, share"] > 50
