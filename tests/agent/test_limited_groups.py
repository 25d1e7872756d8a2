"""Kernel limits follow the desired state, whatever the driver answers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from agent.check.memory_limits import memory_limits as checked
from agent.claims.limited_groups import Key, LimitedGroups
from agent.host import memory_limits
from agent.host.gpus import Inventory
from agent.host.memory_limits import NO_LIMIT

GIB = 1 << 30
GPU = "GPU-00000000-0000-0000-0000-000000000000"
HANDLES = {GPU: "the handle"}


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class Driver:
    """NVML of r615, over directories that stand for control groups."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.hard: dict[str, int] = {}
        self.used: dict[str, int] = {}
        self.writes = 0
        # The error of setting a limit.
        self.error: int | None = None
        # As with the dmem controller of the kernel: groups without its files have no limit.
        self.dmem = False
        patch.setattr(pynvml, "nvmlDeviceSetMemoryLimits_v1", self._write)
        patch.setattr(pynvml, "nvmlDeviceGetMemoryLimits_v1", self._read)

    def _write(self, handle: object, limits: Any) -> None:
        group = _text(limits.nameSpace)
        self.writes += 1
        if self.error is not None:
            raise pynvml.NVMLError(self.error)
        if not Path(group).is_dir():
            raise pynvml.NVMLError(pynvml.NVML_ERROR_OPERATING_SYSTEM)
        if self.dmem and not Path(group, "dmem.max").exists():
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        assert limits.softLimit == 0
        # The kernel's counters accept no maximum below the amount in use, without an error.
        if self.used.get(group, 0) <= limits.hardLimit:
            self.hard[group] = limits.hardLimit

    def _read(self, handle: object, limits: Any) -> None:
        group = _text(limits.nameSpace)
        if group not in self.hard:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        limits.hardLimit, limits.currentUsed = self.hard[group], self.used.get(group, 0)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


@pytest.fixture
def group(tmp_path: Path) -> str:
    path = tmp_path / "gpucloud-claim"
    path.mkdir()
    return str(path)


@pytest.fixture
def groups(tmp_path: Path) -> LimitedGroups:
    return LimitedGroups(tmp_path / "kernel-limits.json")


@pytest.fixture
def sync(groups: LimitedGroups, group: str) -> Callable[[int], dict[Key, str]]:
    """Set this limit of the group; return the failures."""

    def synced(limit: int) -> dict[Key, str]:
        groups.sync({Key(group, GPU): limit}, HANDLES)
        return groups.failures

    return synced


def test_a_limit_is_set_once_and_follows_what_is_wanted(driver: Driver, sync: Any, group: str) -> None:
    assert sync(4 * GIB) == sync(4 * GIB) == {}
    assert (driver.hard[group], driver.writes) == (4 * GIB, 1)
    sync(8 * GIB)
    assert driver.hard[group] == 8 * GIB


def test_a_lowered_limit_follows_the_use_down(driver: Driver, sync: Any, group: str) -> None:
    sync(8 * GIB)
    driver.used[group] = 6 * GIB
    assert sync(4 * GIB) == {}
    # Not a byte more than there is.
    assert driver.hard[group] == 6 * GIB
    driver.used[group] = 5 * GIB
    sync(4 * GIB)
    assert driver.hard[group] == 5 * GIB
    driver.used[group] = GIB
    sync(4 * GIB)
    assert driver.hard[group] == 4 * GIB


def test_what_somebody_else_changed_is_set_again(driver: Driver, sync: Any, group: str) -> None:
    sync(4 * GIB)
    driver.hard[group] = NO_LIMIT
    sync(4 * GIB)
    assert driver.hard[group] == 4 * GIB


def test_what_is_no_longer_wanted_is_cleared(driver: Driver, groups: LimitedGroups, sync: Any, group: str) -> None:
    sync(4 * GIB)
    groups.sync({}, HANDLES)
    assert (driver.hard[group], groups.is_empty) == (NO_LIMIT, True)


def test_the_next_agent_sets_it_again_and_clears_what_is_no_longer_wanted(
    driver: Driver, sync: Any, group: str, tmp_path: Path
) -> None:
    sync(4 * GIB)
    other = tmp_path / "other"
    other.mkdir()
    after = LimitedGroups(tmp_path / "kernel-limits.json")
    assert not after.is_empty
    after.sync({Key(str(other), GPU): GIB}, HANDLES)
    assert driver.hard == {group: NO_LIMIT, str(other): GIB}


def test_a_group_that_was_made_again_is_another_one(driver: Driver, groups: LimitedGroups, tmp_path: Path) -> None:
    path = tmp_path / "container"
    path.mkdir()
    groups.sync({Key(str(path), GPU): GIB}, HANDLES)
    # Another owner's now; the old one's inode is still taken.
    path.rename(tmp_path / "old")
    path.mkdir()
    driver.hard[str(path)] = 3 * GIB
    groups.sync({}, HANDLES)
    assert (driver.hard[str(path)], groups.is_empty, groups.failures) == (3 * GIB, True, {})


def test_a_group_that_ended_is_no_failure(driver: Driver, sync: Any, groups: LimitedGroups, group: str) -> None:
    Path(group).rmdir()
    assert sync(GIB) == {}
    assert groups.is_empty


def test_a_gpu_that_does_not_answer_keeps_what_it_has(driver: Driver, sync: Any, groups: LimitedGroups) -> None:
    sync(4 * GIB)
    groups.sync({}, {})
    assert not groups.is_empty


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (pynvml.NVML_ERROR_NO_PERMISSION, "run the agent as root"),
        (pynvml.NVML_ERROR_NOT_SUPPORTED, "does not limit this GPU"),
        (pynvml.NVML_ERROR_UNKNOWN, "Unknown Error"),
    ],
)
def test_what_the_driver_refuses_is_told_until_it_does_not(
    driver: Driver, sync: Any, error: int, words: str, group: str
) -> None:
    driver.error = error
    failures = sync(4 * GIB)
    assert words in failures[Key(group, GPU)]
    driver.error = None
    assert sync(4 * GIB) == {}
    assert driver.hard[group] == 4 * GIB


def test_a_group_without_the_dmem_controller_is_told_with_what_to_do(driver: Driver, sync: Any, group: str) -> None:
    driver.dmem = True
    assert "cgroup.subtree_control" in sync(4 * GIB)[Key(group, GPU)]
    Path(group, "dmem.max").touch()
    assert sync(4 * GIB) == {}


def test_a_limit_that_the_driver_took_and_does_not_tell_is_no_limit(
    driver: Driver, sync: Any, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceSetMemoryLimits_v1", lambda *_: None)
    assert "no limit" in sync(4 * GIB)[Key(group, GPU)]


def test_calls_that_the_driver_or_the_package_lacks_are_not_known(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert memory_limits.is_known("the handle")

    def lacking(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryLimits_v1", lacking)
    assert not memory_limits.is_known("the handle")
    monkeypatch.delattr(pynvml, "nvmlDeviceGetMemoryLimits_v1")
    assert not memory_limits.is_known("the handle")


def test_the_check_says_who_limits_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 0)
    old, new = Inventory(driver_version="580.159.04"), Inventory(driver_version="615.71", limits_memory=True)
    found = checked(old)
    assert (found.state, found.detail[:60]) == ("ok", "not available: driver 580.159.04, r615 or newer needed; libv")
    assert "version 2" in checked(new, root=tmp_path).detail
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory\n")
    assert checked(new, root=tmp_path).detail.startswith("enforced by the driver, which keeps account")
    (tmp_path / "cgroup.controllers").write_text("cpu memory dmem\n")
    off = checked(new, root=tmp_path)
    assert (off.state, off.detail) == ("warning", "available, but the dmem controller is off")
    assert f"echo +dmem > {tmp_path}/cgroup.subtree_control" in (off.cure or "")
    (tmp_path / "cgroup.subtree_control").write_text("cpu dmem\n")
    assert checked(new, root=tmp_path).detail == "enforced by the driver, by the kernel's dmem controller"
    assert "GPUCLOUD_CGROUPS" in checked(new, has_groups=False, root=tmp_path).detail
    assert "namespace" in checked(new, sees_all=False, root=tmp_path).detail
    monkeypatch.setattr("os.getuid", lambda: 1000)
    assert checked(new, root=tmp_path).cure == "Run the agent as root."
