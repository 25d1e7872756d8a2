"""Check of whether the agent can start programs of jobs, as which users, and where their files are."""

import os
import pwd
import stat
from pathlib import Path

from agent.check.finding import failed, ok, warning
from agent.jobs import resource_group, unit
from agent.settings import Settings
from agent.wire import Check

NAME = "jobs"
# capabilities(7).
CAP_SETGID, CAP_SETUID = 6, 7


def jobs(settings: Settings) -> Check:
    """Check the users, the right to become them, and that they reach the directory of their runs."""
    users, place = settings.jobs, settings.jobs_dir
    if users is None:
        return ok(NAME, "not wanted: GPUCLOUD_JOBS is not set, so this node starts no programs of jobs")
    if users.first is None or users.last is None:
        words = f"programs run as the agent's own user, uid {os.getuid()}, in {place}; their host memory is not bounded"
        return ok(NAME, words)
    if not _may_change_users():
        return failed(
            NAME,
            "the agent may not start programs as other users",
            "It needs CAP_SETUID and CAP_SETGID: install this version's unit, or leave GPUCLOUD_JOBS out.",
        )
    closed = find_closed(place)
    if closed is not None:
        return failed(
            NAME, f"programs cannot reach {place}: {closed} is closed to other users", "Set GPUCLOUD_JOBS_DIR."
        )
    known = [one.pw_name for one in pwd.getpwall() if users.first <= one.pw_uid <= users.last]
    if known:
        return warning(
            NAME,
            f"uids {users.first}-{users.last} are users of this machine, too: {', '.join(known[:5])}",
            "Programs of tenants could read and end theirs: give GPUCLOUD_JOBS a range that nobody else uses.",
        )
    if unit.find_systemd_run() is None and not resource_group.can_bound_memory():
        return warning(
            NAME,
            "the host memory of runs is not bounded: systemd does not run here, and the agent makes no control groups",
            "Run the agent as a unit of systemd, or let it write to the control group of its memory.",
        )
    return ok(NAME, f"programs run as uids {users.first}-{users.last}, one for each tenant, in {place}")


def find_closed(place: Path) -> Path | None:
    """Return the directory above that other users may not pass through; None if there is none."""
    above = [one for one in place.parents if one.exists()]
    return next((one for one in reversed(above) if not one.stat().st_mode & stat.S_IXOTH), None)


def _may_change_users() -> bool:
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    rights = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return bool(rights >> CAP_SETUID & 1 and rights >> CAP_SETGID & 1)
