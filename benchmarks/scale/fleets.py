"""Agents at once a second: the cost of a frame, of an open page, of a change for all, and a killed web server."""

import asyncio
import os
import time
from typing import Any

import psycopg

from benchmarks.pages.beating import resize
from benchmarks.pages.dashboards import Dashboard
from benchmarks.report import Row, quantile
from benchmarks.scale.crowd import Crowds
from benchmarks.scale.stage import Stage
from benchmarks.telemetry.calls import call_port

BEHIND = """
SELECT count(*) FROM (SELECT frame, observed_frame FROM nodes_node ORDER BY id LIMIT %s) connected
WHERE frame <> observed_frame
"""
GIVEN_SECONDS = 150.0
# A member's page refreshes more often than an operator's; which claims are whose is not looked at here.
MEMBERS = frozenset[str]()
# Connections stand for so long before the kill that an agent's pauses begin anew.
STANDS_SECONDS = 11.0


def steady(ready: Stage, crowds: Crowds, agents: int, seconds: float) -> Row:
    """Return the cost of this many agents that measure once a second."""
    time.sleep(3)
    crowds.command("acknowledged")
    before, begun = ready.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    after, wall = ready.cpu_seconds(), time.monotonic() - begun
    acks = [1000 * ack for found in crowds.command("acknowledged") for ack in found]
    return {
        "agents": agents, "web servers": len(ready.ports), "frames a second": len(acks) / wall,
        "ack p50 ms": quantile(acks, 0.5), "ack p95 ms": quantile(acks, 0.95),
        **{f"{who} CPU %": (after[who] - before[who]) * 100 / wall for who in after},
        "web ms a frame": (after["web"] - before["web"]) * 1000 / len(acks),
        "postgres ms a frame": (after["postgres"] - before["postgres"]) * 1000 / len(acks),
        "largest web MiB": ready.mib()["web"],
    }  # fmt: skip


def watched(ready: Stage, agents: int, count: int, seconds: float) -> Row:
    """Return the times of this many open dashboards, half of operators, half of members, while claims are resized."""
    return asyncio.run(_watched(ready, agents, count, seconds))


async def _watched(ready: Stage, agents: int, count: int, seconds: float) -> Row:
    cookies, claims = ready.filled.cookies, [claim for node in ready.filled.nodes for claim in node.claims]
    readers = [(ready.filled.cookie, None) if at % 2 else (cookies[at % len(cookies)], MEMBERS) for at in range(count)]
    boards = [Dashboard(ready.ports[at // 2 % len(ready.ports)], *reader) for at, reader in enumerate(readers)]
    sent: dict[str, float] = {}
    warm = 3 + count / 40
    until = time.monotonic() + warm + seconds
    work = [asyncio.ensure_future(board.live(sent, until, 5 * at / max(1, count))) for at, board in enumerate(boards)]
    await asyncio.sleep(warm)
    for board in boards:
        for figures in (board.told, board.shown, board.answers):
            del figures[1:]
    before, begun = ready.cpu_seconds(), time.monotonic()
    number = 0
    while time.monotonic() < begun + seconds - 2:
        claim, number = claims[number % len(claims)], number + 1
        sent[claim] = time.time()
        port = ready.ports[number % len(ready.ports)]
        # An unchanged limit would send no message.
        await asyncio.to_thread(resize, port, ready.filled.token, claim, 51 + count % 43)
        await asyncio.sleep(0.25)
    await asyncio.sleep(max(0.0, begun + seconds - time.monotonic()))
    after, wall = ready.cpu_seconds(), time.monotonic() - begun
    await asyncio.gather(*work)
    told, shown, answers = (
        [1000 * value for board in boards for value in getattr(board, figures)] or [0.0]
        for figures in ("told", "shown", "answers")
    )
    return {
        "agents": agents, "dashboards": count, "resizes": number, "parts a second": len(answers) / wall,
        "told": len(told), "told p50 ms": quantile(told, 0.5), "told p95 ms": quantile(told, 0.95),
        "told max ms": max(told), "shown p50 ms": quantile(shown, 0.5), "shown p95 ms": quantile(shown, 0.95),
        "answer p50 ms": quantile(answers, 0.5), "answer p95 ms": quantile(answers, 0.95),
        **{f"{who} CPU %": (after[who] - before[who]) * 100 / wall for who in after},
    }  # fmt: skip


def change_all(ready: Stage, crowds: Crowds, agents: int, *, kill: bool) -> Row:
    """Change how the pool shares its GPUs, right after the kill of a web server if wanted; return the times."""
    time.sleep(STANDS_SECONDS if kill else 2.0)
    crowds.command("mark")
    begun = time.time()
    if kill:
        ready.kill("web-1")
    _change_pool(ready)
    answered = time.time()
    found = [one for process in crowds.command("wait_for_newer") for one in process]
    stored = _stored(agents)
    lost = [(told, lost, back) for told, lost, back, _ in found if lost > begun]
    return {
        "agents": agents, "killed": "a web server" if kill else "nothing", "lost": len(lost),
        "back p50 s": quantile([back - gone for _, gone, back in lost] or [0.0], 0.5),
        "back max s": max([back - gone for _, gone, back in lost] or [0.0]),
        "in force after the kill max s": max([told - begun for told, _, _ in lost] or [0.0]),
        "told to come later": sum(throttled for *_, throttled in found), "change answered s": answered - begun,
        "change at half s": quantile([told - begun for told, *_ in found], 0.5),
        "change at all s": max(told - begun for told, *_ in found), "stored s": stored - begun,
    }  # fmt: skip


def _change_pool(ready: Stage) -> None:
    """Change the pool at the last web server."""
    pool = _call(ready, "GET", "pools/default/")
    _call(ready, "PATCH", "pools/default/", {"core_ceiling": 189 - pool["core_ceiling"]})


def _call(ready: Stage, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    return call_port(ready.ports[-1], ready.filled.token, method, path, body)


def _stored(agents: int) -> float:
    """Return the time at which every connected node's last frame was observed to be in force."""
    deadline = time.monotonic() + GIVEN_SECONDS
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        while time.monotonic() < deadline:
            row = connection.execute(BEHIND, [agents]).fetchone()
            if row is not None and not row[0]:
                return time.time()
            time.sleep(0.1)
    raise TimeoutError("observations were not stored in time")
