"""CRIU's calls: as the user of the programs, with the one capability that it needs, and never as root for another's.

Root would open every file that an image names; this way CRIU opens only what the user may open.
"""

import asyncio
import contextlib
import grp
import os
import pwd
import re
import sys
from pathlib import Path

from agent.carrying.images import Refused, User

INIT, CLOCK = Path(__file__).with_name("init.py"), Path(__file__).with_name("clock.py")
# To choose pids and to read and write the memory of the user's own processes; to drop what the other node had dropped.
CAPABILITIES = "-all,+checkpoint_restore,+setpcap"
NEEDED = ("nsenter", "setpriv", "unshare", "openssl")
OPTIONS = ("--leave-stopped", "--unprivileged", "--manage-cgroups=ignore", "-v2")
_ERROR = re.compile(r"Error \([^)]*\): (.*)")


def local_user(uid: int, gid: int, groups: tuple[int, ...]) -> User:
    """Return the user of this machine with these numbers. Raises Refused if it has another group or more groups."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        allowed = {uid}
    else:
        allowed = {entry.pw_gid, *os.getgrouplist(entry.pw_name, entry.pw_gid)}
    if foreign := sorted({gid, *groups} - allowed):
        names = ", ".join(_group_name(number) for number in foreign)
        raise Refused(f"The programs run with group {names}, of which user {uid} of this machine is no member.")
    return User(uid, gid, groups)


def _group_name(number: int) -> str:
    with contextlib.suppress(KeyError):
        return f"{grp.getgrgid(number).gr_name} ({number})"
    return str(number)


def as_user(user: User, *command: str) -> list[str]:
    """Return the command to be run as this user, with what CRIU needs."""
    groups = ["--groups", ",".join(map(str, user.groups))] if user.groups else ["--clear-groups"]
    return [
        "setpriv", "--reuid", str(user.uid), "--regid", str(user.gid), *groups, f"--inh-caps={CAPABILITIES}",
        f"--ambient-caps={CAPABILITIES}", "--", *command,
    ]  # fmt: skip


def dump_command(criu: str, user: User, *, host_pid: int, pid: int) -> list[str]:
    """Return the command that dumps the process, which has this pid in its own namespace, and all of its children.

    The images are in the working directory, so that the user need not be able to come to it.
    """
    inside = as_user(user, criu, "dump", "-t", str(pid), "-D", ".", "-o", "dump.log", *OPTIONS)
    return ["nsenter", "-t", str(host_pid), "-m", "-n", "-p", "-T", "--wd=.", "--", *inside]


def restore_command(criu: str, user: User, *, ahead: tuple[int, int]) -> list[str]:
    """Return the command that restores a dump in namespaces of its own, and lives as long as they do.

    `ahead`: nanoseconds by which the programs' CLOCK_MONOTONIC and CLOCK_BOOTTIME are ahead of the machine's.
    """
    inside = as_user(user, criu, "restore", "-d", "-D", ".", "-o", "restore.log", *OPTIONS)
    python = [sys.executable, "-I", "-S"]
    return [
        *python, str(CLOCK), *map(str, ahead), "unshare", "--fork", "--kill-child", "--pid", "--mount-proc", "--",
        *python, str(INIT), str(user.uid), str(user.gid), *inside,
    ]  # fmt: skip


async def run(command: list[str], directory: Path, *, seconds: float) -> int | None:
    """Run the command; return its exit code, or None if it took longer and was killed. Raises OSError."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=directory,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(seconds):
            return await process.wait()
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def describe_failure(log: Path) -> str:
    """Return CRIU's first words about what went wrong."""
    try:
        found = _ERROR.findall(log.read_text(errors="replace"))
    except OSError:
        found = []
    return "; ".join(found[:2])[:400] or "it says nothing"
