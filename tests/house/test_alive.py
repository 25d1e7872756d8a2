"""deploy/docker/alive.sh: the health check of processes that serve no port."""

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from gpucloud import heartbeat
from tests.heartbeats import CHECK, age, is_alive

# Two minutes, as docs/kubernetes.md and docs/compose.md say.
MOST_SECONDS = 120


def test_a_file_that_was_touched_within_two_minutes_is_alive(tmp_path: Path) -> None:
    file = tmp_path / "heartbeat"
    assert not is_alive(file), "a process that has not begun yet"
    file.touch()
    assert is_alive(file)
    age(file, MOST_SECONDS - 10)
    assert is_alive(file)
    age(file, MOST_SECONDS + 10)
    assert not is_alive(file)


def test_the_check_starts_no_python(tmp_path: Path) -> None:
    """With nothing but a shell and `find` on its PATH."""
    for name in ("sh", "find"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    file = tmp_path / "heartbeat"
    file.touch()
    environment = {"PATH": str(tmp_path), "HEARTBEAT_PATH": str(file)}
    assert subprocess.run(["sh", CHECK], env=environment, check=False).returncode == 0


def test_a_beat_touches_the_file(tmp_path: Path, settings: Any) -> None:
    file = tmp_path / "heartbeat"
    settings.HEARTBEAT_PATH = str(file)
    heartbeat.beat()
    assert is_alive(file)
    age(file, MOST_SECONDS + 10)
    heartbeat.beat()
    assert time.time() - file.stat().st_mtime < MOST_SECONDS


def test_without_a_file_nothing_is_written(settings: Any) -> None:
    settings.HEARTBEAT_PATH = ""
    heartbeat.beat()


def test_a_file_that_cannot_be_written_is_no_secret(settings: Any) -> None:
    settings.HEARTBEAT_PATH = "/nonexistent/heartbeat"
    with pytest.raises(OSError, match="heartbeat"):
        heartbeat.beat()


def test_a_forked_child_does_not_beat_for_its_parents_loop(tmp_path: Path, settings: Any) -> None:
    file = tmp_path / "heartbeat"
    settings.HEARTBEAT_PATH = str(file)
    child = os.fork()
    if child == 0:
        heartbeat.beat()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not file.exists()
