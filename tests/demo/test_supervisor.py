"""The supervisor: dead programs restart, a stop is in order, and a file lists the pids."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.demo.supervisor import FIRST_PAUSE_SECONDS, StopRequested, Supervisor
from deploy.embedded.processes import Program, StartFailed
from tests.processes import alive, eventually

# Writes its name to a file that all share when it is asked to stop.
POLITE = """
import signal, sys, time
def bye(number, frame):
    with open(sys.argv[2], "a") as said:
        print(sys.argv[1], file=said)
    sys.exit(0)
signal.signal(signal.SIGTERM, bye)
open(sys.argv[2] + "." + sys.argv[1], "w").close()
time.sleep(600)
"""
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)


class Messages(list[str]):
    """The supervisor's messages, in order."""


@pytest.fixture
def said() -> Messages:
    return Messages()


@pytest.fixture
def supervisor(tmp_path: Path, said: Messages) -> Iterator[Supervisor]:
    supervisor = Supervisor(pids=tmp_path / "pids.json", say=said.append)
    yield supervisor
    supervisor.stop()


def program(tmp_path: Path, name: str, *command: str, **more: object) -> Program:
    return Program(name=name, command=command, log=tmp_path / f"{name}.log", **more)  # type: ignore[arg-type]


def sleeper(tmp_path: Path, name: str) -> Program:
    return program(tmp_path, name, "sleep", "600")


def watch_until(supervisor: Supervisor, condition: Callable[[], bool], *, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        supervisor.watch(0.02)


def test_what_is_killed_is_started_again_and_that_is_said(
    tmp_path: Path, supervisor: Supervisor, said: Messages
) -> None:
    supervisor.start(sleeper(tmp_path, "worker"), tier=0)
    first = supervisor.pids()["worker"]
    os.kill(first, signal.SIGKILL)
    watch_until(supervisor, lambda: supervisor.pids().get("worker", first) != first)
    assert alive(supervisor.pids()["worker"])
    assert said == [f"worker was ended by SIGKILL; starting it again in {FIRST_PAUSE_SECONDS} s"]


def test_pauses_double_while_a_program_keeps_dying(tmp_path: Path, supervisor: Supervisor, said: Messages) -> None:
    supervisor.start(program(tmp_path, "broken", "false"), tier=0)
    watch_until(supervisor, lambda: len(said) == 3)
    assert [line.rpartition("in ")[2] for line in said] == ["0.2 s", "0.4 s", "0.8 s"]


def test_a_program_that_may_die_twice_is_then_left_alone(
    tmp_path: Path, supervisor: Supervisor, said: Messages
) -> None:
    supervisor.start(program(tmp_path, "broken", "false"), tier=0, most_deaths=2)
    watch_until(supervisor, lambda: len(said) == 2)
    assert "left alone after 2 starts" in said[-1]
    assert "broken" not in supervisor.pids()


def test_tiers_stop_from_the_last_to_the_first(tmp_path: Path, supervisor: Supervisor) -> None:
    order = tmp_path / "order"
    for tier, name in enumerate(("database", "server", "agent")):
        ready = tmp_path / f"order.{name}"
        polite = program(tmp_path, name, sys.executable, "-c", POLITE, name, str(order), ready=ready.exists)
        supervisor.start(polite, tier=tier)
        supervisor.wait_ready([name])
    supervisor.stop()
    assert order.read_text().split() == ["agent", "server", "database"]


def test_what_does_not_stop_in_its_time_is_killed_with_its_children(tmp_path: Path, supervisor: Supervisor) -> None:
    # The shell's child is in its group, and gets no signal from it.
    log = tmp_path / "stubborn.log"
    stubborn = program(
        tmp_path,
        "stubborn",
        *("sh", "-c", f'trap "" TERM; "{sys.executable}" -c "$0"; wait', STUBBORN),
        stop_seconds=0.3,
        ready=lambda: log.exists() and "up" in log.read_text(),
    )
    supervisor.start(stubborn, tier=0)
    supervisor.wait_ready(["stubborn"])
    pid = supervisor.pids()["stubborn"]
    members = [int(path.name) for path in Path("/proc").glob("[0-9]*") if group_of(path) == pid]
    assert len(members) == 2
    supervisor.stop()
    # The signal is sent; a busy kernel takes a moment to end the process.
    assert eventually(lambda: not any(map(alive, members)), seconds=5)


def group_of(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[2])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def test_the_file_says_who_runs_and_goes_when_nothing_does(tmp_path: Path, supervisor: Supervisor) -> None:
    supervisor.start(sleeper(tmp_path, "worker"), tier=0)
    told = json.loads((tmp_path / "pids.json").read_text())
    assert told == {"launcher": os.getpid(), "worker": supervisor.pids()["worker"]}
    supervisor.stop()
    assert not (tmp_path / "pids.json").exists()


def test_a_start_that_fails_shows_the_end_of_the_log(tmp_path: Path, supervisor: Supervisor) -> None:
    failing = program(tmp_path, "server", "sh", "-c", "echo no such table; exit 3", ready=lambda: False)
    supervisor.start(failing, tier=0)
    with pytest.raises(StartFailed, match="no such table"):
        supervisor.wait_ready(["server"])


def test_a_command_that_fails_shows_the_end_of_its_log(tmp_path: Path, supervisor: Supervisor) -> None:
    with pytest.raises(StartFailed, match="no such migration"):
        supervisor.run_to_end(program(tmp_path, "migrate", "sh", "-c", "echo no such migration; exit 1"), seconds=10)


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path, supervisor: Supervisor) -> None:
    with pytest.raises(StartFailed, match="took longer"):
        supervisor.run_to_end(sleeper(tmp_path, "migrate"), seconds=0.2)


def test_whoever_waits_is_interrupted_by_a_request_to_stop(tmp_path: Path, supervisor: Supervisor) -> None:
    supervisor.request_stop()
    with pytest.raises(StopRequested):
        supervisor.watch(60)
