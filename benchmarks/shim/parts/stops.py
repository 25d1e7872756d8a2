"""Waiting times of tenants when the arbiter or one of them is stopped or ended, in each holder's turn."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.shim.gaps import Sampler, row_gap_ms
from benchmarks.shim.pages import TURN_CLOSED, TURN_FREE, Claim
from benchmarks.shim.part import Part
from benchmarks.shim.processes import Process
from benchmarks.shim.report import Report
from benchmarks.shim.sampling import watch
from benchmarks.shim.stage import Stage

REQUESTS = {"A": 30, "B": 70}
OTHER = {"A": "B", "B": "A"}
# Kernels of a millisecond: the pages move every few samples, and a turn ends on time.
FLOOD = ("--kernel-us", "1000")
ROW_SECONDS, START_SECONDS, SETTLE_SECONDS = 0.02, 20.0, 0.5
ARBITER_STOPPED_SECONDS, QUICK_STOPPED_SECONDS = 3.0, 1.5
# Several rounds; how near its share, in points, a tenant must be before the next event.
LOOK_SECONDS, NEAR = 0.3, 15.0
TURN_SECONDS, TURN_POLL_SECONDS, TURN_LEFT_NS = 1.0, 0.0005, 4_000_000
Row = dict[str, float | int | str | None]


@dataclass(frozen=True)
class Window:
    """The time of a stop, or just after it; CLOCK_MONOTONIC seconds. ``wanted`` is the target share."""

    name: str
    begin: float
    end: float
    wanted: str = ""


@dataclass
class Scene:
    """Two tenants that never pause, 30 and 70 percent guaranteed, and the arbiter."""

    stage: Stage
    claims: dict[str, Claim] = field(default_factory=dict)
    tenants: dict[str, Process] = field(default_factory=dict)
    arbiter: Process | None = None

    def prepare(self) -> None:
        """Start missing processes; restart everything if the tenants do not have their shares."""
        self._start_missing()
        if self.claims and not self._steady():
            # An earlier event's failure has its own row.
            self.clear()
            self._start_missing()

    def _start_missing(self) -> None:
        if not self.claims:
            self.claims = {name: self.stage.claim(100) for name in REQUESTS}
            for name, request in REQUESTS.items():
                self.claims[name].limit(self.stage.gpu.uuid, 100, request=request, policy="burst")
        if self.arbiter is None or not self.arbiter.alive:
            self.arbiter = self.stage.arbiter()
        missing = [name for name in REQUESTS if name not in self.tenants or not self.tenants[name].alive]
        for name in missing:
            self.tenants[name] = self.stage.gpuload(self.claims[name], *FLOOD, interval=ROW_SECONDS)
        for name in missing:
            self.tenants[name].wait(seconds=START_SECONDS)
        time.sleep(SETTLE_SECONDS)

    def _steady(self) -> bool:
        courses = watch(self.claims, LOOK_SECONDS, LOOK_SECONDS)
        return all(abs(courses[name].share - request) < NEAR for name, request in REQUESTS.items())

    def clear(self) -> None:
        """End everything; the next :meth:`prepare` starts anew."""
        for process in (*self.tenants.values(), self.arbiter):
            if process is not None:
                process.stop(signal.SIGCONT)
        self.stage.clear()
        self.claims, self.tenants, self.arbiter = {}, {}, None

    def wait_for_turn(self, name: str) -> bool:
        """Wait until the tenant holds a turn that lasts some milliseconds more; False if none came."""
        until = time.monotonic() + TURN_SECONDS
        while time.monotonic() < until:
            ends = self.claims[name].turn()["ends_ns"]
            if ends not in {TURN_CLOSED, TURN_FREE} and ends > time.monotonic_ns() + TURN_LEFT_NS:
                return True
            time.sleep(TURN_POLL_SECONDS)
        return False


Act = Callable[[Scene, str], list[Window]]


def measure(stage: Stage, report: Report) -> None:
    scene = Scene(stage)
    rows: list[Row] = []
    for name, act in ACTS.items():
        for holder in ("B",) if stage.quick or act is leave_alone else ("A", "B"):
            try:
                rows += observe(scene, name, act, holder)
            except Exception as error:  # noqa: BLE001 - the others are measured all the same
                report.add_failure(f"{name}, {holder}'s turn", error)
                scene.clear()
    scene.clear()
    report.table(
        "Longest time without progress, ms: of both together by the pages (sampled every 2 ms), and of each tenant by "
        "its page and by the rows that it prints every 20 ms, from the event on. Share: GPU time by the page, %. "
        "A is guaranteed 30 %, B 70 %; both flood the GPU with kernels of 1 ms, policy burst",
        rows,
    )


def observe(scene: Scene, name: str, act: Act, holder: str) -> list[Row]:
    """Carry out one event in the holder's turn; return a row per window."""
    scene.prepare()
    with Sampler(scene.claims) as sampler:
        time.sleep(2 * ROW_SECONDS)
        seen = scene.wait_for_turn(holder)
        windows = act(scene, holder)
        time.sleep(3 * ROW_SECONDS)
    turn = f"{holder}'s" if seen else "none seen"
    return [make_row(name, turn, window, sampler, scene) for window in windows]


def make_row(name: str, turn: str, window: Window, sampler: Sampler, scene: Scene) -> Row:
    span = (window.begin, window.end)
    found: Row = {
        "event": name, "turn": turn, "window": window.name, "nobody": sampler.gap_ms(list(REQUESTS), *span),
    }  # fmt: skip
    for tenant in REQUESTS:
        found[f"{tenant}, page"] = sampler.gap_ms([tenant], *span)
        found[f"{tenant}, own"] = row_gap_ms(scene.tenants[tenant].rows(), "kernels", *span)
    for tenant in REQUESTS:
        found[f"{tenant}, share"] = sampler.share(tenant, *span)
    return {**found, "wanted": window.wanted or None}


def pass_time(name: str, seconds: float, wanted: str = "") -> Window:
    """Sleep; return the window that this was."""
    begin = time.monotonic()
    time.sleep(seconds)
    return Window(name, begin, time.monotonic(), wanted)


def leave_alone(scene: Scene, _holder: str) -> list[Window]:
    return [pass_time("2 s", 2.0, "the gaps that turns make")]


def replace_arbiter(scene: Scene, _holder: str) -> list[Window]:
    """End the arbiter as an upgrade of the agent does, and start the next one at once."""
    begin = time.monotonic()
    require(scene.arbiter).terminate()
    scene.arbiter = scene.stage.arbiter()
    time.sleep(scene.stage.seconds)
    return [Window("until after the next one began", begin, time.monotonic(), "nobody < 50")]


def kill_arbiter(scene: Scene, _holder: str) -> list[Window]:
    begin = time.monotonic()
    require(scene.arbiter).kill()
    time.sleep(1.5 * scene.stage.seconds)
    gone = Window("without an arbiter", begin, time.monotonic(), "nobody < 200")
    scene.arbiter = scene.stage.arbiter()
    return [gone, pass_time("the next one began", scene.stage.seconds, "nobody < 50")]


def stop_arbiter(scene: Scene, _holder: str) -> list[Window]:
    arbiter = require(scene.arbiter)
    arbiter.stop(signal.SIGSTOP)
    seconds = QUICK_STOPPED_SECONDS if scene.stage.quick else ARBITER_STOPPED_SECONDS
    stopped = pass_time("stopped", seconds, "nobody < 200")
    arbiter.stop(signal.SIGCONT)
    first = pass_time("first second after", 1.0, "A > 20 % of the GPU")
    return [stopped, first, pass_time("second after that", 1.0, "A 30, B 70")]


def stop_holder(scene: Scene, holder: str) -> list[Window]:
    return stop_tenant(scene, holder, OTHER[holder])


def stop_waiter(scene: Scene, holder: str) -> list[Window]:
    return stop_tenant(scene, OTHER[holder], holder)


def stop_tenant(scene: Scene, stopped: str, other: str) -> list[Window]:
    scene.tenants[stopped].stop(signal.SIGSTOP)
    held = pass_time(f"{stopped} stopped", scene.stage.seconds, f"{other} < 100")
    scene.tenants[stopped].stop(signal.SIGCONT)
    return [held, pass_time(f"{stopped} continued", scene.stage.seconds, f"{stopped} has its share")]


def kill_holder(scene: Scene, holder: str) -> list[Window]:
    scene.tenants[holder].kill()
    return [pass_time(f"without {holder}", scene.stage.seconds, f"{OTHER[holder]} < 100")]


def kill_waiter(scene: Scene, holder: str) -> list[Window]:
    scene.tenants[OTHER[holder]].kill()
    return [pass_time(f"without {OTHER[holder]}", scene.stage.seconds, f"{holder} < 50")]


def end_holder(scene: Scene, holder: str) -> list[Window]:
    scene.tenants[holder].stop(signal.SIGTERM)
    return [pass_time(f"without {holder}", scene.stage.seconds, f"{OTHER[holder]} < 100")]


def require(arbiter: Process | None) -> Process:
    assert arbiter is not None, "there is no arbiter in this build"
    return arbiter


ACTS: dict[str, Act] = {
    "none": leave_alone,
    "arbiter SIGTERM, the next one started": replace_arbiter,
    "arbiter SIGKILL": kill_arbiter,
    "arbiter SIGSTOP, SIGCONT": stop_arbiter,
    "who holds the turn: SIGSTOP, SIGCONT": stop_holder,
    "who waits for it: SIGSTOP, SIGCONT": stop_waiter,
    "who holds the turn: SIGKILL": kill_holder,
    "who waits for it: SIGKILL": kill_waiter,
    "who holds the turn: SIGTERM": end_holder,
}
PART = Part("stops", "the arbiter or a tenant stopped or ended", measure, seconds=1.0)
