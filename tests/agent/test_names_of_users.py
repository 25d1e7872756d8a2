"""User-chosen names of programs, cgroups and mount points: no name is mistaken for another's, or crashes the agent."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent import wire
from agent.check import everything
from agent.claims import attribution
from agent.claims.attribution import ProcessInfo
from agent.drift import DriftFinding, Drifts
from agent.host import mounts, processes
from agent.host.cgroups import Hierarchy
from agent.host.processes import Process

ID = "5f" * 32
ME, PARENT = os.getpid(), os.getppid()
CLAIM = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
Write = Callable[[str, bytes], None]


@pytest.fixture
def proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Write:
    """Write a file of /proc, by its path."""
    held: dict[str, Path] = {}
    real = Path.open

    def opened(path: Path, *options: Any, **more: Any) -> Any:
        return real(held.get(str(path), path), *options, **more)

    monkeypatch.setattr(Path, "open", opened)

    def write(name: str, content: bytes) -> None:
        held[name] = tmp_path / name.replace("/", "-")
        held[name].write_bytes(content)

    return write


def container(pid: int) -> str | None:
    return processes.container(Process(pid, 1))


def test_a_cgroup_that_a_user_names_after_a_container_is_not_that_container(proc: Write) -> None:
    user = "0::/user.slice/user-1000.slice/user@1000.service/app.slice"
    proc(f"/proc/{ME}/cgroup", f"0::/system.slice/docker-{ID}.scope\n".encode())
    proc(f"/proc/{PARENT}/cgroup", f"{user}/{ID}.scope\n".encode())
    machine = [ProcessInfo(Process(pid, 1), 0, container(pid), None) for pid in (ME, PARENT)]
    members = {"a": [Process(PARENT, 1)]}
    assert attribution.attribute(machine, members, {}, accepts=lambda *_: True, me=1) == {"a": {Process(PARENT, 1)}}
    # The control: a process further below is in the same container.
    proc(f"/proc/{PARENT}/cgroup", f"0::/system.slice/docker-{ID}.scope/init\n".encode())
    assert container(PARENT) == container(ME)


def test_a_cgroup_whose_name_is_no_text_has_its_path(proc: Write) -> None:
    proc(f"/proc/{ME}/cgroup", b"1:cpu:/\xff\x0c\x85\n\x0c\n0::/user.slice/\xff\x0cx\n")
    assert Hierarchy(Path("/mnt"), "/", 2).path_of(ME) == Path(os.fsdecode(b"/mnt/user.slice/\xff\x0cx"))
    assert container(ME) is None


def test_mount_points_that_are_no_text_hide_no_others(tmp_path: Path) -> None:
    listed = tmp_path / "mountinfo"
    rows = [
        b"30 1 0:9 / /home/a/\xff\x0c\xc2\x85 rw shared:1 - fuse.\xff x rw",
        b"no line of the kernel's",
        b"31 1 0:10 / /run rw - tmpfs tmpfs rw,mode=755",
    ]
    listed.write_bytes(b"".join(row + b"\n" for row in rows))
    assert [(one.point, one.kind) for one in mounts.read(listed)] == [
        (os.fsdecode(b"/home/a/\xff\x0c\xc2\x85"), "fuse.\udcff"),
        ("/run", "tmpfs"),
    ]


def test_a_check_that_meets_what_is_no_text_is_a_warning() -> None:
    found = everything._run_check("disk", b"\xff".decode)  # type: ignore[arg-type]
    assert (found.name, found.state) == ("disk", "warning")


def test_a_program_whose_name_looks_like_a_line_of_its_status_is_found_by_the_kernels(proc: Write) -> None:
    proc(f"/proc/{ME}/status", f"Name:\t\rNSpid:x\nPid:\t{ME}\nNSpid:\t{ME}\n".encode())
    mine = (processes.own_namespace(), ME)
    assert processes.find_in_namespaces({mine}) == {mine: processes.myself()}


def test_a_library_whose_path_is_no_text_or_long_is_told_of_in_few_words(proc: Write, tmp_path: Path) -> None:
    library = tmp_path / "libvcuda.so"
    library.touch()
    row = b"7f00-7f01 r-xp 0 00:1 5 /home/a/\xff\ra b c d e /" + b"y" * 4000 + b"/libvcuda.so\n"
    proc(f"/proc/{ME}/maps", row)
    path = processes.other_file(processes.myself(), library)
    assert path is not None
    assert (path.startswith("/home/a/\ufffd\r"), len(path)) == (True, processes.MOST_CHARACTERS)


def test_what_is_told_of_a_drift_is_never_longer_than_the_server_takes() -> None:
    drifts = Drifts(SimpleNamespace(), Path("/"), report=lambda *_: None)  # type: ignore[arg-type]
    drifts.found = [DriftFinding("limits-unreadable", CLAIM, "x" * 3000)]
    drifts._since = {drifts.found[0].key: 1.0}
    frame = wire.Observed(frame=1, assignments=[], drifts=drifts.to_wire())
    assert wire.decode_from_agent(wire.encode(frame)) == frame


def test_who_started_a_program_is_the_kernels_line_of_its_status(proc: Write) -> None:
    proc(f"/proc/{ME}/status", b"Name:\t\rUid:\t0\nUid:\t61001\t0\t0\t0\nGid:\t0\t0\t0\t0\n")
    assert processes.user(processes.myself()) == 61001
