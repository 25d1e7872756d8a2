"""The directory of a demo, and what a stop removes of it."""

from pathlib import Path

from deploy.demo.state import State


def test_a_stop_removes_runs_and_keeps_what_the_next_start_needs(tmp_path: Path) -> None:
    state = State(tmp_path / "demo")
    state.root.mkdir(mode=0o700, exist_ok=True)
    key, node = state.secret_key(), state.root / "nodes" / "sim-1"
    node.mkdir(parents=True)
    (node / "agent.json").touch()
    runs = [state.run_directory("sim-1"), node.with_name("sim-1-jobs") / "a-run"]
    for run in runs:
        run.mkdir(parents=True)
    state.clear_runs()
    assert not any(run.exists() for run in runs)
    assert (node / "agent.json").exists()
    assert not runs[0].parent.exists(), "nothing is left in memory"
    assert state.secret_key() == key


def test_a_node_keeps_the_record_of_its_instances_which_its_simulated_driver_keeps_too(tmp_path: Path) -> None:
    state = State(tmp_path / "demo")
    state.root.mkdir(mode=0o700, exist_ok=True)
    run = state.run_directory("sim-1")
    (run / "claims").mkdir(parents=True)
    (run / "instances.json").write_text("[]")
    state.clear_runs()
    assert [path.name for path in run.iterdir()] == ["instances.json"]
    (run / "instances.json").unlink()
    state.clear_runs()
    assert not run.exists()
