"""The paths of an installation. An install writes nothing that is not named here."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

UNIT = "gpucloud-agent.service"


class Layout(NamedTuple):
    """The paths on one machine, or below a directory that stands for one (`--root`)."""

    root: Path

    @property
    def home(self) -> Path:
        """The program: a directory per version, and `current`, the link to the one in use."""
        return self.root / "opt/gpucloud-agent"

    @property
    def versions(self) -> Path:
        """A directory per version; nothing in one is ever written again."""
        return self.home / "versions"

    @property
    def current(self) -> Path:
        """The path that starts programs, so that one name leads to the newest library."""
        return self.home / "current"

    @property
    def settings(self) -> Path:
        """NAME=VALUE lines, for the operator to change; no secrets."""
        return self.root / "etc/gpucloud-agent.env"

    @property
    def unit(self) -> Path:
        """The unit file of systemd."""
        return self.root / "etc/systemd/system" / UNIT

    @property
    def command(self) -> Path:
        """`gpucloud-agent` on the PATH: a link to the current version's."""
        return self.root / "usr/local/bin/gpucloud-agent"

    @property
    def state(self) -> Path:
        """The agent's key and the last wanted state; the settings may name another directory."""
        return self._read_setting("GPUCLOUD_STATE_DIR") or self.own_state

    @property
    def run(self) -> Path:
        """Pages and sockets; the settings may name another directory."""
        return self._read_setting("GPUCLOUD_RUN_DIR") or self.own_run

    @property
    def own_state(self) -> Path:
        """The default state directory."""
        return self.root / "var/lib/gpucloud-agent"

    @property
    def jobs(self) -> Path:
        """The runs of jobs; the settings may name another directory."""
        return self._read_setting("GPUCLOUD_JOBS_DIR") or self.own_jobs

    @property
    def own_jobs(self) -> Path:
        """The default directory of the runs of jobs."""
        return self.root / "var/lib/gpucloud-agent-jobs"

    @property
    def own_run(self) -> Path:
        """The default run directory."""
        return self.root / "run/gpucloud"

    @property
    def has_systemd(self) -> bool:
        """True if systemd runs, as sd_booted(3) checks it."""
        return (self.root / "run/systemd/system").is_dir()

    def version(self) -> str | None:
        """Return the name of the version in use; None if there is none."""
        return self.current.readlink().name if self.current.is_symlink() else None

    def manifest(self) -> dict[str, Any]:
        """Return the manifest of the version in use; empty if there is none."""
        try:
            facts: dict[str, Any] = json.loads((self.current / "manifest.json").read_text())
        except (OSError, ValueError):
            facts = {}
        return facts

    def claims(self) -> list[str]:
        """Return the claims on this machine, by the directories of their pages."""
        directory = self.run / "claims"
        return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []

    def _read_setting(self, name: str) -> Path | None:
        try:
            value = settings_of(self.settings.read_text()).get(name)
        except FileNotFoundError:
            return None
        return Path(value).absolute() if value else None


def settings_of(text: str) -> dict[str, str]:
    """Parse NAME=VALUE lines as the launcher reads them: the first of two lines with one name counts."""
    chosen: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not name.startswith("#"):
            chosen.setdefault(name.strip(), value.strip())
    return chosen


def replace_link(link: Path, target: Path) -> None:
    """Point the link to the target, at once for everyone who follows it."""
    fresh = link.with_name(f".{link.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)


def write(path: Path, text: str, *, mode: int) -> None:
    """Replace a small file as a whole."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text)
    fresh.chmod(mode)
    os.replace(fresh, path)  # noqa: PTH105 - the one word for it
