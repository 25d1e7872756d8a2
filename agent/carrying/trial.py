"""A trial of whether running programs can be carried on this machine: a small process is dumped and restored."""

import functools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from agent.carrying import criu
from agent.carrying.images import User
from agent.settings import Settings

TRIAL_SECONDS = 20.0


def find_hindrance(settings: Settings) -> str | None:
    """Return why no running programs can be sent or taken; None if they can. The first time takes a second or two."""
    if settings.carry is None:
        return "GPUCLOUD_CARRY is not set"
    if os.getuid() != 0:
        return "the agent is not root"
    if settings.criu is None:
        return "CRIU is not installed (package criu of Debian 13, or GPUCLOUD_CRIU)"
    if missing := [name for name in criu.NEEDED if shutil.which(name) is None]:
        return f"{', '.join(missing)} is not installed"
    if not settings.carry_users:
        return "GPUCLOUD_CARRY_UIDS names no user whose programs may come"
    return _try_once(settings.criu, settings.carry_users[0][0])


@functools.cache
def _try_once(program: str, uid: int) -> str | None:
    try:
        with tempfile.TemporaryDirectory() as place:
            return _try(program, User(uid, uid, ()), Path(place))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"a trial failed: {error}"


def _try(program: str, user: User, directory: Path) -> str | None:
    os.chown(directory, user.uid, user.gid)
    as_user = ["setpriv", "--reuid", str(user.uid), "--regid", str(user.gid), "--clear-groups", "--no-new-privs", "--"]
    null = subprocess.DEVNULL
    sleeper = subprocess.Popen(
        [*as_user, "sleep", "1000"], stdin=null, stdout=null, stderr=null, start_new_session=True, cwd="/"
    )
    try:
        # Until it is the program itself.
        while Path(f"/proc/{sleeper.pid}/comm").read_text().strip() != "sleep":
            if sleeper.poll() is not None:
                return f"no program can be started as user {user.uid}"
        dump = criu.dump_command(program, user, host_pid=sleeper.pid, pid=sleeper.pid)
        done = subprocess.run(
            dump, cwd=directory, stdin=null, stdout=null, stderr=null, timeout=TRIAL_SECONDS, check=False
        )
        if done.returncode:
            return f"a trial could not be dumped: {criu.describe_failure(directory / 'dump.log')}"
    finally:
        sleeper.kill()
        sleeper.wait()
    return _try_to_restore(criu.restore_command(program, user, ahead=(0, 0)), directory)


def _try_to_restore(command: list[str], directory: Path) -> str | None:
    null = subprocess.DEVNULL
    first = subprocess.Popen(
        command, cwd=directory, stdin=null, stdout=subprocess.PIPE, stderr=null, start_new_session=True
    )
    try:
        assert first.stdout is not None
        # Its restored process stands still, so that it would not end by itself.
        answer = json.loads(first.stdout.readline() or b"{}")
        if answer.get("code") == 0:
            return None
        return f"a trial could not be restored: {criu.describe_failure(directory / 'restore.log')}"
    finally:
        first.kill()
        first.wait()
        if first.stdout is not None:
            first.stdout.close()
