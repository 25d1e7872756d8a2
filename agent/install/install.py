"""Installation of a new machine or a new version: unpack, check, enrol, switch, start.

Until the switch nothing that runs is touched; a step that fails before it leaves the machine as it was. The switch is
one rename. A new version that does not start is switched back.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from agent.install import systemd, unpack
from agent.install.layout import Layout, replace_link, settings_of, write


class Refused(Exception):
    """Refusal that leaves the machine as it was; the message says why and what to do."""


class Order(NamedTuple):
    """The operator's order."""

    bundle: Path
    layout: Layout
    # None: as the settings have it.
    server: str | None
    # One-time; None if the machine is a node already.
    token: str | None
    # More lines for the settings.
    settings: Mapping[str, str]
    # True: continue though the self-check found something, or pages change under running programs.
    force: bool
    # The time that a new version has to start.
    patience_seconds: float


def install(order: Order, say: Callable[[str], None]) -> None:
    """Install the bundle. Raises Refused, unpack.Unfit, OSError."""
    layout = order.layout
    before = layout.version()
    _refuse_other_pages(order)
    place = unpack.unpack(order.bundle, layout)
    kept = layout.settings.read_text() if layout.settings.exists() else None
    try:
        _settle(order, kept)
        _self_check(order, place, say)
        _enrol(order, place, say)
    except BaseException:
        _undo(layout, place, before, kept)
        raise
    replace_link(layout.current, place)
    replace_link(layout.command, layout.current / "gpucloud-agent")
    if layout.has_systemd:
        _start(order, before, say)
        unpack.remove_others(layout, {place.name})
    else:
        # A running agent may still load modules of its own version.
        unpack.remove_others(layout, {place.name, before or place.name})
        verb = "Restart" if before else "Start"
        say(f"There is no systemd here. {verb} the agent, and keep it running: {layout.command} run")


def _refuse_other_pages(order: Order) -> None:
    claims = order.layout.claims()
    now, then = order.layout.manifest().get("pages"), unpack.manifest(order.bundle)["pages"]
    if claims and now not in (None, then) and not order.force:
        raise Refused(
            f"{len(claims)} claims lie on this machine with pages of version {now}, and this bundle's library reads "
            f"version {then}: their next programs would start without limits. Cordon the node and release them first; "
            "--force continues anyway."
        )


def _settle(order: Order, kept: str | None) -> None:
    layout = order.layout
    chosen = settings_of(kept or "")
    if order.server:
        chosen["GPUCLOUD_SERVER"] = order.server
    if not chosen.get("GPUCLOUD_SERVER"):
        raise Refused("The control plane's address is missing: --server URL. `gpucloud node add NAME` prints it all.")
    chosen["GPUCLOUD_LIBRARY"] = str(layout.current / "libvcuda.so")
    # The machine's own: another directory would have neither its key nor its claims.
    chosen["GPUCLOUD_STATE_DIR"], chosen["GPUCLOUD_RUN_DIR"] = str(layout.state), str(layout.run)
    # The unit has no environment of the shell that installs it.
    if authority := os.environ.get("SSL_CERT_FILE"):
        chosen["SSL_CERT_FILE"] = str(Path(authority).absolute())
    chosen |= order.settings
    head = "# Settings of the gpucloud agent, one NAME=VALUE a line; `gpucloud-agent run --help` names them.\n"
    write(layout.settings, head + "".join(f"{name}={value}\n" for name, value in chosen.items()), mode=0o644)


def _self_check(order: Order, place: Path, say: Callable[[str], None]) -> None:
    """Run the self-check of the new version, before anything is changed for it."""
    result = _run(order, place, "check", "--here", text=True)
    say(result.stdout.rstrip() or result.stderr.rstrip())
    if result.returncode != 0 and not order.force:
        raise Refused("Nothing was changed. Repair what failed and run the same command again, or add --force.")


def _enrol(order: Order, place: Path, say: Callable[[str], None]) -> None:
    order.layout.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    result = _run(order, place, "enrol", text=True, token=order.token)
    if result.returncode != 0:
        raise Refused(result.stderr.strip().removeprefix("gpucloud: "))
    say(result.stdout.strip())


def _start(order: Order, before: str | None, say: Callable[[str], None]) -> None:
    layout = order.layout
    try:
        systemd.place(layout, unpack.unit(order.bundle))
        systemd.start(again=before is not None)
        _wait(order)
    except OSError as error:
        if before is None:
            raise
        replace_link(layout.current, layout.versions / before)
        systemd.start(again=True)
        raise Refused(f"The new version does not come up, and {before} runs again: {error}") from error
    say("The agent runs; systemd starts it with the machine.")


def _wait(order: Order) -> None:
    """Wait until the agent answers at its socket. Raises OSError after `patience_seconds`."""
    end = time.monotonic() + order.patience_seconds
    while _run(order, order.layout.current, "status", text=True).returncode != 0:
        if time.monotonic() > end:
            raise OSError(
                f"it does not answer within {order.patience_seconds:g} s; `journalctl -u gpucloud-agent` says why"
            )
        time.sleep(0.2)


def _run(
    order: Order, place: Path, *words: str, text: bool, token: str | None = None
) -> "subprocess.CompletedProcess[str]":
    # The new version's own library, not the one that `current` leads to until the switch.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUCLOUD_")}
    environment |= {"GPUCLOUD_LIBRARY": str(place / "libvcuda.so")}
    if token:
        environment["GPUCLOUD_ENROL_TOKEN"] = token
    return subprocess.run(
        [place / "gpucloud-agent", *words], env=environment, capture_output=True, text=text, check=False
    )


def _undo(layout: Layout, place: Path, before: str | None, kept: str | None) -> None:
    # Read before the settings are restored.
    state = layout.state
    if kept is None:
        layout.settings.unlink(missing_ok=True)
    else:
        write(layout.settings, kept, mode=0o644)
    if before is None:
        shutil.rmtree(layout.home, ignore_errors=True)
        # An identity that the server knows already must not be lost with a later step.
        if state.is_dir() and not any(state.iterdir()):
            state.rmdir()
    elif place.name != before:
        shutil.rmtree(place, ignore_errors=True)
