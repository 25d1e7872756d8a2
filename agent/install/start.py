"""`__main__` of the bundle, which is one zip file that Python runs. Old Pythons must be able to read this file."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile

TRIED = "GPUCLOUD_PYTHON_TRIED"


def find_pythons(bundle: str) -> list[tuple[int, int]]:
    """Return the Pythons that the bundle has packages for, newest first."""
    with zipfile.ZipFile(bundle) as archive:
        tags = {name.split("/")[1] for name in archive.namelist() if name.startswith("packages/cp")}
    return sorted(((int(tag[2]), int(tag[3:])) for tag in tags), reverse=True)


def main() -> int:
    """Become a Python that the bundle has packages for, then run the command; return the exit code."""
    bundle = os.path.abspath(sys.argv[0])  # noqa: PTH100 - without the link that it may be called by
    pythons = find_pythons(bundle)
    if sys.version_info[:2] not in pythons:
        for major, minor in pythons:
            path = shutil.which(f"python{major}.{minor}")
            if path and TRIED not in os.environ:
                os.environ[TRIED] = "1"
                os.execv(path, [path, bundle, *sys.argv[1:]])  # noqa: S606 - to become it is the purpose
        names = " or ".join(f"{major}.{minor}" for major, minor in pythons)
        here = f"{sys.version_info[0]}.{sys.version_info[1]}"
        sys.stderr.write(
            f"gpucloud: this is Python {here}, and the agent's bundle has packages for {names}: install one of them. "
            "Or the server's operator adds packages for this one (docs/install.md).\n"
        )
        return 1
    from agent.install.command import main as command  # noqa: PLC0415 - no older Python could read it

    return command(bundle)


if __name__ == "__main__":
    sys.exit(main())
