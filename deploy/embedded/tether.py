"""A command that cannot outlive its parent.

Run by path as ``python -I -S tether.py PARENT SIGNAL USER -- COMMAND…``: asks the kernel to send SIGNAL when the thread
that started this process ends (PR_SET_PDEATHSIG), then replaces itself by COMMAND. USER is ``-`` or ``uid:gid``.

The request survives execve(2), but a change of credentials clears it, so it is made after the change of user, and a
set-uid command would lose it. It belongs to the *thread* that forked: start children from a thread that lives as long
as they should (the launcher's main thread).
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def tether_to(parent: int, number: int) -> None:
    """Request signal `number` for the parent's end; exit at once if it has ended already."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    # The parent may have died before the request: then no signal would ever come.
    if os.getppid() != parent:
        sys.exit("the launcher is gone")


def main() -> None:
    parent, number, user = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    command = sys.argv[5:]
    if user != "-":
        uid, gid = (int(part) for part in user.split(":"))
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    tether_to(parent, number)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
