"""systemd, where there is one."""

import subprocess

from agent.install.layout import UNIT, Layout, write


def place(layout: Layout, text: str) -> None:
    """Write the unit."""
    write(layout.unit, text.replace("=/usr/local/bin/gpucloud-agent", f"={layout.command}"), mode=0o644)
    call("daemon-reload")


def start(*, again: bool) -> None:
    """Let it run now and after each boot."""
    call("enable", "--quiet", UNIT)
    call("restart" if again else "start", UNIT)


def take_away(layout: Layout) -> None:
    """Stop it and take the unit away."""
    if layout.unit.exists():
        call("disable", "--quiet", "--now", UNIT)
        layout.unit.unlink()
        call("daemon-reload")


def call(*words: str) -> None:
    """Raises OSError with systemctl's own words."""
    told = subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False)
    if told.returncode != 0:
        raise OSError(f"systemctl {' '.join(words)}: {told.stderr.strip() or f'exit code {told.returncode}'}")
