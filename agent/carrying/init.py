"""`python agent/carrying/init.py UID GID COMMAND…`: the first process of the namespace of programs from another node.

It runs the command (CRIU, which restores them as its own children and ends), says how that ended, and from then on only
waits for what is left to end, as every pid namespace needs it. Standard library only.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1


def main(uid: str, gid: str, *command: str) -> int:
    """Restore by the command; stay until all processes have ended."""
    null = subprocess.DEVNULL
    result = subprocess.run(command, stdin=null, stdout=null, stderr=null, check=False)
    # CRIU ran as this user; nothing of root's is left in the namespace.
    os.setgroups([])
    os.setresgid(int(gid), int(gid), int(gid))
    os.setresuid(int(uid), int(uid), int(uid))
    # `unshare --kill-child` had asked for it, and a change of the user undoes it.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with contextlib.suppress(OSError):
        sys.stdout.write(json.dumps({"code": result.returncode}) + "\n")
        sys.stdout.flush()
    # An agent that restarts leaves nobody who reads.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    return result.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
