"""`python agent/host/parent_death.py PARENT COMMAND…`: become a command that ends with its parent.

The kernel sends SIGTERM when the parent's thread ends (PR_SET_PDEATHSIG). This imports nothing of the agent, so that it
starts in a few milliseconds.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: str, *command: str) -> int:
    """Become the command; return an exit code only if it cannot be run."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        sys.stderr.write(f"prctl: {os.strerror(ctypes.get_errno())}\n")
        return 1
    if os.getppid() != int(parent):
        # The parent died before the request was made; nobody would ever send the signal.
        return 1
    try:
        os.execv(command[0], command)  # noqa: S606 - to become it is its purpose
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
    return 127


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
