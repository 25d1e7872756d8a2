"""Check of whether running programs can be carried to and from this machine."""

from agent.carrying import trial
from agent.check.finding import ok, warning
from agent.settings import Settings
from agent.wire import Check

NAME = "carry"
CURE = (
    "Install criu 4 and util-linux, run the agent as root with the rights that docs/suspend.md lists, or leave "
    "GPUCLOUD_CARRY out: moves to other nodes then restart programs."
)


def carrying(settings: Settings) -> Check:
    """Check by a trial that running programs can be dumped and restored, if that is wanted."""
    if settings.carry is None:
        return ok(NAME, "not wanted: GPUCLOUD_CARRY is not set")
    if (words := trial.find_hindrance(settings)) is not None:
        return warning(NAME, f"running programs cannot be carried to other nodes: {words}"[:500], CURE)
    users = ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in settings.carry_users)
    return ok(NAME, f"a program was dumped and restored; programs of users {users} may come, to {settings.carry}")
