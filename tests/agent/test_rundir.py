"""The agent starts only with a run directory of its own."""

import os
from pathlib import Path

import pytest

from agent.rundir import RunDir, RunDirError


def test_a_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    prepared = tmp_path / "run"
    prepared.mkdir()
    prepared.chmod(0o777)
    with pytest.raises(RunDirError, match="writable by nobody else"):
        RunDir(prepared).take()


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunDirError, match="is not a directory"):
        RunDir(tmp_path / "run").take()


def test_a_path_too_long_for_a_socket_is_refused_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="GPUCLOUD_RUN_DIR"):
        RunDir(tmp_path / ("x" * 107)).take()


def test_tenants_pass_through_but_do_not_list(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        run = RunDir(tmp_path / "run")
        run.take()
    finally:
        os.umask(before)
    assert run.root.stat().st_mode & 0o777 == 0o755
    assert run.claims.stat().st_mode & 0o777 == 0o711
