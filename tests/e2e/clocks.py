"""Wall clocks of a platform under test that can be set, the agents' and the control plane's apart."""

import os
import struct
import subprocess
from pathlib import Path
from typing import Literal

SOURCE = Path(__file__).with_name("clock_offset.c")
# The order of the numbers in the file of offsets.
PLACES = ("node", "server")
WIDTH = struct.calcsize("q")

Place = Literal["node", "server"]


class Clocks:
    """Offsets from the machine's wall clock; the monotonic clock is the machine's."""

    def __init__(self, directory: Path) -> None:
        # PostgreSQL runs as another user if the tests run as root.
        directory.chmod(0o755)
        self._offsets = directory / "clock-offsets"
        self._offsets.write_bytes(bytes(WIDTH * len(PLACES)))
        self._library = directory / "clock_offset.so"
        command = ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(self._library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True, timeout=60)

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables under which a program follows these clocks."""
        return {"LD_PRELOAD": str(self._library), "CLOCK_OFFSETS": str(self._offsets)}

    def jump(self, place: Place, seconds: int) -> None:
        """Set one clock so many seconds before the machine's; a negative number sets it back."""
        file = os.open(self._offsets, os.O_WRONLY)
        try:
            os.pwrite(file, struct.pack("q", seconds), PLACES.index(place) * WIDTH)
        finally:
            os.close(file)
