"""A machine for the installer's tests: a directory as its root, and a small systemd."""

import asyncio
import contextlib
import io
import json
import os
import signal
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from apps.nodes.services.bundle import bundle, command
from tests.agent.stage import BUILD, Stage

PLACES = ("etc/systemd/system", "opt", "usr/local/bin", "var/lib", "run", "tmp")
Files = dict[str, tuple[int, bytes]]


def rewrite_bundle(content: bytes, **files: str) -> bytes:
    """Return the bundle with other files: `daemon="…"` replaces agent/daemon.py, `manifest={…}` its manifest."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            stem = Path(name).stem
            mine = name in ("manifest.json", f"agent/{stem}.py")
            new.writestr(name, files[stem] if mine and stem in files else old.read(name))
    return out.getvalue()


class InstalledMachine:
    """A machine below `root`; `stage` has its GPUs and the agent's server."""

    def __init__(self, root: Path, stage: Stage) -> None:
        self.root, self.stage = root, stage
        for place in PLACES:
            (root / place).mkdir(parents=True)
        # Files of others.
        (root / "etc/systemd/system/other.service").write_text("[Service]\n")
        (root / "usr/local/bin/other").write_text("#!/bin/sh\n")
        (root / "tmp/bin").mkdir()
        (root / "tmp/bin/systemctl").symlink_to(Path(__file__).with_name("systemctl"))
        self.agent = root / "usr/local/bin/gpucloud-agent"
        made = bundle()
        assert made is not None
        self.bundle = made
        stage.control.files = {made.path: made.content}
        stage.run_dir = root / "run/gpucloud"
        stage.state_dir = root / "var/lib/gpucloud-agent"

    def boot_systemd(self) -> None:
        (self.root / "run/systemd/system").mkdir(parents=True)

    @property
    def options(self) -> str:
        settings = {
            "GPUCLOUD_SIM_NODE": self.stage.node_file,
            "GPUCLOUD_SIM_DRIVER": BUILD / "sim",
            "GPUCLOUD_BACKOFF_CAP_SECONDS": "0.2",
            "GPUCLOUD_RELEASE_GRACE_SECONDS": "1",
        }
        return f"--root {self.root} " + " ".join(f"--set {name}={value}" for name, value in settings.items())

    async def run_copied_line(self, *, token: str = "gpe_once") -> tuple[int, str]:
        """Run the line that an operator copies, with another root; return its exit code and output."""
        line = command(server=self.stage.control.url, token=token).removesuffix(")")
        return await self.ran("sh", "-c", f"{line} {self.options})")

    async def install(self, content: bytes, *more: str) -> tuple[int, str]:
        """Install another bundle by hand."""
        path = self.root / "tmp/other.pyz"
        path.write_bytes(content)
        return await self.ran(sys.executable, str(path), "install", "--root", str(self.root), *more)

    async def ran(self, *words: str) -> tuple[int, str]:
        environment = self.stage.environment(
            PATH=f"{self.root / 'tmp/bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            STAND_IN_ROOT=str(self.root),
            TMPDIR=str(self.root / "tmp"),
            PYTHONDONTWRITEBYTECODE="1",
        )
        # The installed agent must find everything in its own directory.
        del environment["PYTHONPATH"], environment["GPUCLOUD_RUN_DIR"]
        program = await asyncio.create_subprocess_exec(
            *words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/"
        )
        out, _ = await program.communicate()
        return program.returncode or 0, out.decode()

    async def status(self) -> dict[str, Any]:
        code, words = await self.ran(str(self.agent), "status", "--json")
        assert code == 0, words
        status: dict[str, Any] = json.loads(words)
        return status

    @property
    def pid(self) -> int | None:
        """Return the pid of the agent that the stand-in for systemd runs."""
        path = self.root / "tmp/agent.pid"
        return int(path.read_text()) if path.exists() else None

    @property
    def versions(self) -> list[str]:
        return sorted(path.name for path in (self.root / "opt/gpucloud-agent/versions").iterdir())

    def files(self) -> Files:
        """Return everything on the machine but /tmp: mode and content (of a link, its target) by path."""
        found: Files = {}
        for path in sorted(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            if name.startswith("tmp"):
                continue
            mode = path.lstat().st_mode
            content = os.fsencode(path.readlink()) if path.is_symlink() else b""
            found[name] = (mode, path.read_bytes() if stat.S_ISREG(mode) else content)
        return found

    def close(self) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
