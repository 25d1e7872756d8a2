"""Check of the program that serves the back end mps, and of each daemon that runs here."""

import time

from agent.check.finding import failed, ok, warning
from agent.host.mps import find_groups, find_running
from agent.host.mps_places import Places, TrustGroup, has_socket, read_fall
from agent.settings import Settings
from agent.wire import Check

NAME = "mps"
INSTALL = "Install nvidia-cuda-mps-control of this driver's version (NVIDIA's compute utilities) in the agent's PATH."


# Later, whoever fell is likely to run again, and the node's page has it.
RECENT_SECONDS = 3600


def mps(settings: Settings) -> Check:
    """Check that the control daemon is installed, and that each one that claims need is running."""
    groups = find_groups(settings.run_dir / "mps")
    if settings.mps_control is None:
        if groups:
            return failed(
                NAME, f"nvidia-cuda-mps-control is gone, and {len(groups)} daemons were started by it", INSTALL
            )
        return ok(NAME, "no nvidia-cuda-mps-control on the PATH: pools with the back end mps place nothing here")
    down = {group: place for group, place in groups.items() if not _is_running(place)}
    if down:
        group, place = next(iter(down.items()))
        words = f"{_names(group)} does not run ({len(groups) - len(down)} of {len(groups)} do)"
        return warning(NAME, words, f"The agent starts it again; {place.log} says why it ends.")
    running = (
        f"{len(groups)} daemon{'' if len(groups) == 1 else 's'} running" if groups else "no claim needs a daemon now"
    )
    falls = [fall for place in groups.values() if (fall := read_fall(place)) is not None]
    at, words = max(falls, default=(0, ""))
    if time.time() - at < RECENT_SECONDS:
        minutes = int(time.time() - at) // 60
        return warning(NAME, f"{running}. {minutes} min ago: {words}", "Start the programs again.")
    return ok(NAME, f"{settings.mps_control}; {running}")


def _is_running(place: Places) -> bool:
    return find_running(place) is not None and has_socket(place.socket)


def _names(group: TrustGroup) -> str:
    return f"the MPS control daemon of {group.owner} on {group.gpu_uuid}"
