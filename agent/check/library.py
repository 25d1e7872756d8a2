"""Checks of what limited programs load: libvcuda, its pages library, the arbiter."""

import os
import platform
import subprocess
from pathlib import Path

from agent.check.finding import failed, ok, warning
from agent.claims.abi import ABI_VERSION, PageError, PagesLibrary
from agent.wire import Check

BUILD = "Install the agent again, or build the library with `make -C libvcuda`."
# The trial ends at once; a loader that hangs is reported, too.
TRIAL_SECONDS = 10.0


def pages(path: Path) -> Check:
    """Check that the pages library loads and uses the page layout of this agent."""
    try:
        PagesLibrary(path)
    except PageError as error:
        return failed("library", str(error), BUILD)
    return ok("library", f"{path.with_name('libvcuda.so')}, pages of version {ABI_VERSION}")


def preload(path: Path) -> Check:
    """Check that a program starts with libvcuda preloaded, with a trial run of /bin/true."""
    if not path.is_file():
        return failed("preload", f"{path} is not there", BUILD)
    try:
        trial = subprocess.run(
            ["/bin/true"],
            env={"LD_PRELOAD": str(path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=TRIAL_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return failed("preload", f"/bin/true does not run with {path} preloaded: {error}", BUILD)
    # The loader continues without a library that it cannot preload: the program runs, unlimited, and only stderr says
    # so.
    if trial.returncode != 0 or trial.stderr:
        words = trial.stderr.strip().splitlines()
        libc = " ".join(platform.libc_ver())
        return failed(
            "preload",
            f"{path} cannot be preloaded: {words[0] if words else f'exit code {trial.returncode}'}",
            f"It needs glibc 2.34 (here: {libc or 'another libc'}), this machine's architecture "
            f"({platform.machine()}), and a file system that is not mounted noexec.",
        )
    return ok("preload", "a program starts with the library preloaded")


def arbiter(path: Path) -> Check:
    """Check that the arbiter can be started."""
    if not path.is_file() or not os.access(path, os.X_OK):
        return warning("arbiter", f"{path} is not there: the claims of a GPU get no turns", BUILD)
    try:
        trial = subprocess.run([path, "--help"], capture_output=True, check=False, timeout=TRIAL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return warning("arbiter", f"{path} does not run: {error}", BUILD)
    if trial.returncode != 0:
        return warning("arbiter", f"{path} does not run: exit code {trial.returncode}", BUILD)
    return ok("arbiter", str(path))
