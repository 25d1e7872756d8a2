"""All checks, in the order in which an operator repairs what they find."""

import concurrent.futures
import threading
from collections.abc import Callable
from pathlib import Path

from agent.check import devices, kernel, library, places, server
from agent.check.carrying import carrying
from agent.check.finding import warning
from agent.check.jobs import jobs
from agent.check.memory_limits import memory_limits
from agent.check.mig import mig
from agent.check.mps import mps
from agent.check.suspension import suspension
from agent.host import cgroups
from agent.host.gpus import Inventory, Nvml
from agent.host.mps import find_all
from agent.settings import Settings
from agent.wire import Check

# Without the persistence daemon, a machine of eight GPUs takes 10 to 20 s for its first answer.
NVML_SECONDS = 30.0


def check_machine(settings: Settings, inventory: Inventory) -> list[Check]:
    """Run the checks that need no server; the hello carries their findings."""
    simulated = settings.library.simulated_node is not None
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("user", kernel.user),
        ("driver", lambda: devices.driver(inventory)),
        ("library", lambda: library.pages(settings.pages_library)),
        ("preload", lambda: library.preload(settings.library.path)),
        ("arbiter", lambda: library.arbiter(settings.arbiter)),
        ("run-dir", lambda: places.run_dir(settings.run_dir)),
        ("state-dir", lambda: places.state_dir(settings.state_dir)),
        ("disk", lambda: places.disk(settings.state_dir)),
        ("cgroup", kernel.cgroup),
        (
            "kernel-memory-limits",
            lambda: memory_limits(inventory, has_groups=settings.cgroups, sees_all=cgroups.sees_all()),
        ),
        ("suspend", lambda: suspension(settings, inventory)),
        ("carry", lambda: carrying(settings)),
        ("mps", lambda: mps(settings)),
        ("jobs", lambda: jobs(settings)),
        ("processes", lambda: kernel.visibility(pids_are_ours=simulated)),
        ("other-sharing", lambda: devices.others(own=find_all(settings.run_dir / "mps"))),
    ]
    if inventory.divided:
        checks.append(("mig", lambda: mig(inventory)))
    if not simulated:
        checks.insert(2, ("devices", devices.files))
    return [_run_check(name, check) for name, check in checks]


def check_everything(settings: Settings, inventory: Inventory | None = None) -> list[Check]:
    """Run all checks, as `agent check` prints them; a running agent passes its own inventory."""
    found = check_machine(settings, _inventory(settings.nvml_library) if inventory is None else inventory)
    found.append(_run_check("enrolled", lambda: server.enrolment(settings.state_dir)))
    return found + server.reachable(settings.server)


def _run_check(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except (OSError, ValueError) as error:
        return warning(name, f"this could not be checked: {error}", "Run the check as the agent's own user.")


def _inventory(nvml_library: Path | None) -> Inventory:
    """Return the inventory, read in a daemon thread so that a hung driver does not hold back the other findings."""
    answer: concurrent.futures.Future[Inventory] = concurrent.futures.Future()
    threading.Thread(target=lambda: answer.set_result(Nvml(nvml_library).inventory()), daemon=True).start()
    try:
        return answer.result(timeout=NVML_SECONDS)
    except TimeoutError:
        return Inventory(problem=f"NVML has not answered within {NVML_SECONDS:g} s: the driver hangs")
