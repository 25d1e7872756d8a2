"""Latency of a service's requests beside best-effort training that has borrowed all memory of the GPU.

The service has 60 % and 40 GiB guaranteed. Another process of the training's claim holds what is free, and a program
outside of all claims the rest, so that the service's own memory comes from what is lent. Rows take turns: the service
bare and alone, beside the training, and beside it while its claim takes and returns memory every two seconds.
"""

import threading
import time
from collections.abc import Mapping

from benchmarks.shim.drive import run_alone, warm_each
from benchmarks.shim.part import Part
from benchmarks.shim.parts.tail import FLOODS, Scene, read_requests, run_service
from benchmarks.shim.parts.tail_rotations import BARE, FLOOD_SECONDS, Row, make_row, spread
from benchmarks.shim.processes import Process
from benchmarks.shim.report import Report
from benchmarks.shim.stage import Stage

GIB = 1 << 30
ROTATIONS, QUICK_ROTATIONS = 4, 1
BORROWED, TAKEN, LEFT = 24 * GIB, 8 * GIB, 512 << 20
EVERY_SECONDS, KNOWN_SECONDS, TAKE_SECONDS = 2.0, 1.0, 60.0
QUIET, MOVING = "beside training that borrows", "the same while memory moves"


def measure(stage: Stage, report: Report) -> None:
    commands = {"service": ("service",), "training": FLOODS["training"]}
    claims = {name: stage.claim(100) for name in commands}
    claims["service"].limit(stage.gpu.uuid, 100, policy="preempt", request=60, memory=40 * GIB)
    lent = {"memory": 130 * GIB, "promised": 6 * GIB, "host": 48 * GIB}
    claims["training"].limit(stage.gpu.uuid, 100, policy="preempt", request=0, best_effort=True, **lent)
    if stage.arbiter() is None:
        report.add_failure("tail-lent", RuntimeError("no arbiter in this build, so nobody lends memory"))
        return
    time.sleep(KNOWN_SECONDS)
    bare = {name: stage.program(None, *command) for name, command in commands.items()}
    training = stage.program(claims["training"], *commands["training"])
    holder = stage.program(claims["training"], "owner")
    failed = warm_each({"training": training, **{f"{name}, bare": process for name, process in bare.items()}})
    order(holder, f"take {BORROWED}")
    order(stage.program(None, "owner"), f"fill {LEFT}")
    # From here on the GPU is full: the service's context and weights are what was lent.
    service, owner = stage.program(claims["service"], "service"), stage.program(claims["service"], "owner")
    for name, error in (failed | warm_each({"service": service})).items():
        report.add_failure(name, error)
    scene = Scene(stage, report, claims, {"service": service, "training": training}, bare)
    rows: dict[str, list[Row]] = {BARE: [], QUIET: [], MOVING: []}
    harvests: dict[str, list[float]] = {QUIET: [], MOVING: []}
    taken = list[float]()
    for _ in range(QUICK_ROTATIONS if stage.quick else ROTATIONS):
        rotate(scene, owner, rows, harvests, taken)
    report.raw("latencies, ms, by row", rows)
    report.raw("harvests, %", harvests)
    report.raw("the owner's calls, ms", taken)
    report.table(
        f"Requests of a decode service, 60 % and 40 GiB guaranteed, in {len(rows[BARE])} rotations of three rows "
        f"beside best-effort training on a GPU that is full; moving: {TAKEN // GIB} GiB are taken, and returned, every "
        f"{EVERY_SECONDS:g} s by the service's claim. Milliseconds from a request's arrival",
        [make_row(how, rows) for how in rows],
    )
    for how, found in harvests.items():
        report.table(f"Part of what the service leaves idle that training got, %, {how}", [spread(found)])
    report.table(f"The calls for {TAKEN // GIB} GiB, ms", [spread(taken)])


def rotate(
    scene: Scene,
    owner: Process,
    rows: Mapping[str, list[Row]],
    harvests: Mapping[str, list[float]],
    taken: list[float],
) -> None:
    rate = run_alone(scene.bare["training"], FLOOD_SECONDS)
    alone, _ = run_service(scene, scene.bare, None)
    rows[BARE].append(latencies(scene.bare["service"]))
    spare = rate * (1 - alone.per_second * alone.service / 1e3)
    for how in (QUIET, MOVING):
        ended = threading.Event()
        mover = threading.Thread(target=move, args=(owner, ended, taken))
        if how == MOVING:
            mover.start()
        _, got = run_service(scene, scene.limited, "training")
        ended.set()
        if how == MOVING:
            mover.join()
        rows[how].append(latencies(scene.limited["service"]))
        harvests[how].append(100 * got["training"].rate / spare)


def latencies(service: Process) -> Row:
    return [request["latency_ms"] for request in read_requests(service)]


def order(process: Process, command: str) -> float:
    process.say(command)
    took = process.wait("took", TAKE_SECONDS)
    assert took["error"] == 0, took
    return float(took["ms"])


def move(owner: Process, ended: threading.Event, taken: list[float]) -> None:
    """Take and return memory until the row ends."""
    while not ended.wait(EVERY_SECONDS / 2):
        taken.append(order(owner, f"take {TAKEN}"))
        ended.wait(EVERY_SECONDS / 2)
        owner.say("free")
        owner.wait("freed", TAKE_SECONDS)


PART = Part("tail-lent", "a service's latencies beside training that borrows memory", measure, seconds=8.0, torch=True)
