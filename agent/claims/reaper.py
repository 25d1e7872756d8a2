"""`python agent/claims/reaper.py LIBRARY PAGE [NAMESPACE PID TICKS]…`: clear dead processes' slots of a usage page.

A process of its own, because a usage page's tenant may shorten the file while it is mapped: SIGBUS then ends the
process that maps it. It must not be the agent. It imports nothing of the agent, so that it starts in a few
milliseconds.
"""

import ctypes
import os
import resource
import sys


def main(library: str, path: str, *numbers: str) -> int:
    """Clear the slots; return 1 if the page cannot be opened."""
    # A tenant that cuts its page in a loop must not fill the disk with our core dumps.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    calls = ctypes.CDLL(library)
    calls.vcuda_usage_reap.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64]
    page = ctypes.c_void_p()
    error = calls.vcuda_usage_open(os.fsencode(path), 1, ctypes.byref(page))
    if error < 0:
        sys.stderr.write(f"{path}: {os.strerror(-error)}\n")
        return 1
    dead = iter(map(int, numbers))
    for namespace, pid, start_ticks in zip(dead, dead, dead, strict=True):
        calls.vcuda_usage_reap(page, namespace, pid, start_ticks)
    # Also those that were killed before they had written their start time.
    calls.vcuda_usage_reap_dead(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
