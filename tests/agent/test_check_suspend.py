"""The check of suspension: an old driver, too little host memory, threads that run on, and a machine that can."""

import os
from pathlib import Path

import pytest

from agent import settings
from agent.check.suspension import suspension
from agent.host.gpus import Inventory
from agent.wire import Check
from tests.agent.stage import BUILD


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget which drivers were asked before."""
    monkeypatch.setattr("agent.check.suspension._able", set())


def check(tmp_path: Path, *, problem: str | None = None, real: bool = False, **environment: str) -> Check:
    """Return the finding on the simulated driver; with `real`, as if it were a real one."""
    simulated = {"GPUCLOUD_LIBRARY": str(BUILD / "libvcuda.so"), "GPUCLOUD_SIM_NODE": str(tmp_path / "node")}
    chosen = settings.read(server="http://127.0.0.1:9", state_dir=str(tmp_path), environment=simulated | environment)
    if real:
        chosen = chosen._replace(library=chosen.library._replace(simulated_driver=None))
    return suspension(chosen, Inventory((), "580.1", problem))


def test_a_machine_that_can_says_into_how_much_memory(tmp_path: Path) -> None:
    found = check(tmp_path, GPUCLOUD_SUSPEND_MEMORY_MIB="64", GPUCLOUD_SUSPEND_SECONDS="7")
    if os.getuid() == 0:
        assert (found.state, found.detail[:11]) == ("ok", "into 64 of ")
        assert "may take 7 s" in found.detail


def test_an_older_driver_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCLOUD_SIM_CUDA_VERSION", "12040")
    found = check(tmp_path)
    assert found.detail.startswith("not available: driver 580.1, 570 or newer needed")
    assert check(tmp_path, problem="none").detail == "not available: no driver"


def test_more_host_memory_than_there_is_and_threads_that_run_on_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("agent.check.suspension.find_lack", lambda _driver: None)
        found = check(tmp_path, real=True, GPUCLOUD_SUSPEND_MEMORY_MIB="99999999")
    assert (found.state, "GPUCLOUD_SUSPEND_MEMORY_MIB" in str(found.cure)) == ("warning", True)
    found = check(tmp_path, GPUCLOUD_SUSPEND_MEMORY_MIB="99999999")
    assert "only" not in found.detail, "simulated memory takes none of the machine's"
    found = check(tmp_path, GPUCLOUD_SUSPEND_MEMORY_MIB="64", GPUCLOUD_CGROUPS="off")
    assert (found.state, "run on meanwhile" in found.detail) == ("warning", True)


def test_a_driver_that_has_the_calls_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["there is none", None]
    monkeypatch.setattr("agent.check.suspension.find_lack", lambda _driver: answers.pop(0))
    assert "there is none" in check(tmp_path).detail
    for _ in range(2):
        assert "there is none" not in check(tmp_path).detail
    assert answers == []
