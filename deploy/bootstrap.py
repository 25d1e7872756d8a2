"""Bootstrap of a fresh clone: the environment, the packages, the C library. Standard library only.

    python3 deploy/bootstrap.py [--dev]

A second run does only what changed. pip's own variables are respected (``PIP_INDEX_URL``, ``PIP_NO_INDEX``,
``PIP_FIND_LINKS``, ``PIP_CERT``). Nothing is installed outside the checkout, and root is not needed.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

if sys.version_info < (3, 11):  # noqa: UP036 - older ones come here too
    sys.exit(
        "gpucloud needs Python 3.11 or newer, and this is {}.{}: install it, or name it, as in\n"
        "  make demo PYTHON=/path/to/python3.11".format(*sys.version_info)
    )

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "gpucloud-installed"
LIBRARY = ROOT / "libvcuda"
KERNEL = ROOT / "apps" / "scheduling" / "core" / "placement" / "kernel"
CLI = ROOT / "cli"

# pip itself, for a Python without ensurepip (Debian splits it off into python3-venv). Any pip can install the pins;
# this version was tried.
PIP_WHEEL = "pip-26.3-py3-none-any.whl"
PIP_SHA256 = "f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13"
PIP_INDEX = "https://pypi.org/simple"

TRIAL = "#include <pthread.h>\n#include <sys/mman.h>\nint main(void) { return 0; }\n"


class Missing(Exception):
    """The machine lacks a requirement; the message names it and how to get it."""


class Progress:
    """Numbered steps with their seconds: one changing line on a terminal, few lines elsewhere."""

    def __init__(self, steps: int) -> None:
        self.steps, self.step, self.begun = steps, 0, time.monotonic()
        self.live = sys.stdout.isatty()
        self.last = 0.0

    def next(self, text: str) -> None:
        self.step += 1
        self.begun = self.last = time.monotonic()
        print(f"[{self.step}/{self.steps}] {text}", flush=True)

    def report(self, text: str) -> None:
        """Print the progress of the step: at once on a terminal, every five seconds elsewhere."""
        now = time.monotonic()
        if self.live:
            print(f"\r\x1b[K      {now - self.begun:4.0f} s  {text[:90]}", end="", flush=True)
        elif now - self.last >= 5:
            self.last = now
            print(f"      {now - self.begun:4.0f} s  {text}", flush=True)

    def done(self, text: str) -> None:
        clear = "\r\x1b[K" if self.live else ""
        print(f"{clear}      {time.monotonic() - self.begun:4.1f} s  {text}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bootstrap", description="Make this checkout ready to run.")
    parser.add_argument("--dev", action="store_true", help="also install what the tests and checks need")
    arguments = parser.parse_args()
    progress = Progress(steps=4)
    try:
        with one_at_a_time(), ThreadPoolExecutor(1) as beside:
            progress.next("checking what the machine has")
            check_toolchain()
            progress.done(f"Python {sys.version.split()[0]}, a C compiler, make")
            # No package is needed for it, and pip keeps one core busy.
            built = beside.submit(build_libraries)
            progress.next("the environment .venv")
            make_environment(progress)
            install(progress, dev=arguments.dev)
            wait_for_libraries(progress, built)
    except Missing as error:
        print(f"\ngpucloud cannot start here: {error}", file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold a file lock: two makes at once would install over each other."""
    (ROOT / ".cache").mkdir(exist_ok=True)
    with (ROOT / ".cache" / "bootstrap.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def compiler() -> str:
    """Return the C compiler's command: $CC, else cc or gcc."""
    for name in (os.environ.get("CC", "").split(" ")[0], "cc", "gcc"):
        if name and shutil.which(name):
            return name
    raise Missing("there is no C compiler. On Debian and Ubuntu: apt install gcc make libc6-dev")


def check_toolchain() -> None:
    if shutil.which("make") is None:
        raise Missing("there is no make. On Debian and Ubuntu: apt install make")
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "trial.c"
        source.write_text(TRIAL)
        trial = subprocess.run(
            [compiler(), "-pthread", str(source), "-o", str(source.with_suffix(""))],
            capture_output=True,
            text=True,
            check=False,
        )
    if trial.returncode != 0:
        raise Missing(
            "the C compiler cannot build a small program; the C library's headers are probably missing. "
            f"On Debian and Ubuntu: apt install libc6-dev\n{trial.stderr}"
        )


def make_environment(progress: Progress) -> None:
    """Create an environment that works and has pip; keep an existing one that works."""
    if works([str(PYTHON), "-c", "import pip, sys; sys.exit(sys.version_info < (3, 11))"]):
        progress.done("kept")
        return
    # --without-pip, so that a missing ensurepip gives our message and not a traceback.
    run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(VENV)], "the environment could not be made")
    if not works([str(PYTHON), "-m", "ensurepip", "--default-pip"]):
        progress.report("this Python has no ensurepip: fetching pip itself")
        with tempfile.TemporaryDirectory() as directory:
            wheel = fetch_pip(Path(directory))
            run([str(PYTHON), f"{wheel}/pip", "install", "-q", "--no-index", "--no-deps", str(wheel)], "no pip")
    progress.done("made")


def fetch_pip(directory: Path) -> Path:
    """Fetch pip's wheel from $PIP_FIND_LINKS or the index, and verify its hash."""
    content = pip_from_links() or pip_from_index()
    if content is None or hashlib.sha256(content).hexdigest() != PIP_SHA256:
        version = "{}.{}".format(*sys.version_info)
        raise Missing(
            f"this Python has no ensurepip, and {PIP_WHEEL} could not be had from the package index. "
            f"On Debian and Ubuntu: apt install python{version}-venv"
        )
    wheel = directory / PIP_WHEEL
    wheel.write_bytes(content)
    return wheel


def pip_from_links() -> bytes | None:
    for place in os.environ.get("PIP_FIND_LINKS", "").split():
        wheel = Path(place.removeprefix("file://")) / PIP_WHEEL
        if wheel.is_file():
            return wheel.read_bytes()
    return None


def pip_from_index() -> bytes | None:
    if os.environ.get("PIP_NO_INDEX", "").lower() in {"1", "true", "yes", "on"}:
        return None
    page_url = os.environ.get("PIP_INDEX_URL", PIP_INDEX).rstrip("/") + "/pip/"
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    try:
        with urllib.request.urlopen(page_url, timeout=60, context=context) as page:  # noqa: S310 - the user's index
            found = re.search(rf'href="([^"]*{re.escape(PIP_WHEEL)})[#"]', page.read().decode())
        if found is None:
            return None
        url = urllib.parse.urljoin(page_url, found.group(1))
        with urllib.request.urlopen(url, timeout=60, context=context) as wheel:  # noqa: S310 - its content is checked
            return bytes(wheel.read())
    except OSError:
        return None


def install(progress: Progress, *, dev: bool) -> None:
    """Install the pins, unless exactly these are installed already."""
    files = [ROOT / "requirements.txt", *([ROOT / "requirements-dev.txt"] if dev else [])]
    progress.next("packages: " + ", ".join(file.name for file in files))
    wanted = [fingerprint(file) for file in [*files, CLI / "pyproject.toml"]]
    have = STAMP.read_text().split() if STAMP.exists() else []
    if set(wanted) <= set(have):
        progress.done("unchanged")
        return
    command = [str(PYTHON), "-m", "pip", "install", "--progress-bar", "off", "--disable-pip-version-check"]
    for file in files:
        command += ["-r", str(file)]
    count = follow_pip(command, progress)
    # The command `gpucloud` from this checkout; its build back end is among the pins.
    no_index = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    run([str(PYTHON), "-m", "pip", "install", "-q", *no_index, "-e", str(CLI)], "`gpucloud` could not be installed")
    STAMP.write_text("\n".join(wanted) + "\n")
    progress.done(f"{count} installed" if count else "complete")


def fingerprint(file: Path) -> str:
    """Return a digest of the pins and the Python that they are installed for."""
    version = subprocess.run([str(PYTHON), "-VV"], capture_output=True, check=True).stdout
    return hashlib.sha256(version + file.read_bytes()).hexdigest()


def follow_pip(command: list[str], progress: Progress) -> int:
    """Run pip, print its progress, and return the number of packages it installed."""
    seen = count = 0
    said: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        for line in pip.stdout or ():
            said.append(line)
            if line.startswith(("Collecting ", "Requirement already satisfied")):
                seen += 1
                progress.report(f"finding packages ({seen} so far)")
            elif line.startswith("Installing collected packages:"):
                count = line.count(",") + 1
                progress.report(f"installing {count} packages …")
    if pip.returncode != 0:
        raise Missing(f"pip could not install the packages:\n{''.join(said[-15:])}")
    return count


def wait_for_libraries(progress: Progress, built: Future[None]) -> None:
    """Report the build that began beside the packages; raise its failure."""
    progress.next("building libvcuda, the simulated driver and the placement kernel")
    built.result()
    progress.done("up to date")


def build_libraries() -> None:
    # With the variables of an outer make, the inner one would wait for the outer job server.
    environment = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    }
    for directory in (LIBRARY, KERNEL):
        command = ["make", "-C", str(directory), f"-j{os.cpu_count() or 1}"]
        built = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if built.returncode != 0:
            raise Missing(f"{directory.name} did not build:\n{(built.stdout + built.stderr)[-3000:]}")


def works(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def run(command: list[str], failure: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Missing(f"{failure}:\n{(done.stdout + done.stderr)[-3000:]}")


if __name__ == "__main__":
    sys.exit(main())
