"""Where everything lies. What is not named here, an install does not write."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

UNIT = "gpucloud-agent.service"


class Layout(NamedTuple):
    """The places on one machine, or below a directory that stands for one (`--root`)."""

    root: Path

    @property
    def home(self) -> Path:
        """The program: a directory per version, and `current`, the link to the one that is used."""
        return self.root / "opt/gpucloud-agent"

    @property
    def versions(self) -> Path:
        """A directory per version; nothing in one is ever written again."""
        return self.home / "versions"

    @property
    def current(self) -> Path:
        """What programs are started with, so that one name leads to the newest library."""
        return self.home / "current"

    @property
    def settings(self) -> Path:
        """NAME=VALUE lines, the operator's to change; no secrets."""
        return self.root / "etc/gpucloud-agent.env"

    @property
    def unit(self) -> Path:
        """systemd's."""
        return self.root / "etc/systemd/system" / UNIT

    @property
    def command(self) -> Path:
        """`gpucloud-agent` on the PATH: a link to the current version's."""
        return self.root / "usr/local/bin/gpucloud-agent"

    @property
    def state(self) -> Path:
        """The agent's key and the last wanted state; the settings may name another place."""
        return self._chosen("GPUCLOUD_STATE_DIR") or self.own_state

    @property
    def run(self) -> Path:
        """Pages and sockets; the settings may name another place."""
        return self._chosen("GPUCLOUD_RUN_DIR") or self.own_run

    @property
    def own_state(self) -> Path:
        """The agent's alone, unless the settings say otherwise."""
        return self.root / "var/lib/gpucloud-agent"

    @property
    def own_run(self) -> Path:
        """Likewise."""
        return self.root / "run/gpucloud"

    @property
    def has_systemd(self) -> bool:
        """As sd_booted(3) tells it."""
        return (self.root / "run/systemd/system").is_dir()

    def version(self) -> str | None:
        """The name of the version that is used; None where none is."""
        return self.current.readlink().name if self.current.is_symlink() else None

    def manifest(self) -> dict[str, Any]:
        """What the version that is used says of itself; nothing where none is."""
        try:
            told: dict[str, Any] = json.loads((self.current / "manifest.json").read_text())
        except (OSError, ValueError):
            told = {}
        return told

    def claims(self) -> list[str]:
        """The claims that this machine holds, by the directories of their pages."""
        directory = self.run / "claims"
        return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []

    def _chosen(self, name: str) -> Path | None:
        try:
            value = settings_of(self.settings.read_text()).get(name)
        except FileNotFoundError:
            return None
        return Path(value).absolute() if value else None


def settings_of(text: str) -> dict[str, str]:
    """NAME=VALUE lines as the launcher reads them: of two of one name the first holds."""
    chosen: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not name.startswith("#"):
            chosen.setdefault(name.strip(), value.strip())
    return chosen


def replace_link(link: Path, target: Path) -> None:
    """Let the link lead there, at once for everyone who follows it."""
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
