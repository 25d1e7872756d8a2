"""`python agent/carrying/clock.py MONOTONIC BOOTTIME COMMAND…`: become a command whose children have other clocks.

Their CLOCK_MONOTONIC and CLOCK_BOOTTIME are so many nanoseconds ahead of the machine's, the latter in whole ticks,
rounded up: /proc says when a process began in ticks by the reader's clock, and libvcuda calculates back. `unshare
--monotonic` takes whole seconds, and in util-linux 2.39 none below zero. Standard library only.
"""

import ctypes
import os
import sys
from pathlib import Path
from typing import NoReturn

CLONE_NEWTIME = 0x80
TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")


def main(monotonic_ns: str, boottime_ns: str, *command: str) -> NoReturn:
    """Become the command, or end with a message."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWTIME) != 0:
        sys.exit(f"unshare: {os.strerror(ctypes.get_errno())}")
    rows = [
        f"{name} {ns // 10**9} {ns % 10**9}"
        for name, ns in (("monotonic", int(monotonic_ns)), ("boottime", -(-int(boottime_ns) // TICK_NS) * TICK_NS))
    ]
    Path("/proc/self/timens_offsets").write_text("\n".join(rows))
    os.execvp(command[0], command)  # noqa: S606 - to become it is its purpose


if __name__ == "__main__":
    main(*sys.argv[1:])
