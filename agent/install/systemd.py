"""The agent's systemd unit, on a machine with systemd."""

import subprocess

from agent.install.layout import UNIT, Layout, write


def place(layout: Layout, text: str) -> None:
    """Write the unit."""
    write(layout.unit, text.replace("=/usr/local/bin/gpucloud-agent", f"={layout.command}"), mode=0o644)
    call("daemon-reload")


def start(*, again: bool) -> None:
    """Start it now and after each boot."""
    call("enable", "--quiet", UNIT)
    call("restart" if again else "start", UNIT)


def take_away(layout: Layout) -> None:
    """Stop it and remove the unit."""
    if layout.unit.exists():
        call("disable", "--quiet", "--now", UNIT)
        layout.unit.unlink()
        call("daemon-reload")


def call(*words: str) -> None:
    """Run systemctl. Raises OSError with systemctl's own words."""
    result = subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise OSError(f"systemctl {' '.join(words)}: {result.stderr.strip() or f'exit code {result.returncode}'}")
