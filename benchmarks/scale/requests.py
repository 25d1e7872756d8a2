"""Requests of several kinds to one web server or several: how many a second, and what each costs."""

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Iterator

import uvloop

from benchmarks.api import load
from benchmarks.report import Row, quantile
from benchmarks.scale.stage import Stage

CLIENTS = 16
WARM_UP_SECONDS = 1.0
POSTED = {"name": "bench", "core_request": 1, "memory_mib": 1}


def get(path: str, token: str) -> bytes:
    """Return a GET of the API."""
    return f"GET /api/v1/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode()


def post(tenant: str, token: str) -> bytes:
    """Return the POST of a small claim."""
    body = json.dumps(POSTED | {"tenant": tenant})
    head = (
        f"POST /api/v1/claims/ HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return f"{head}{body}".encode()


def part(cookie: str) -> bytes:
    """Return a refresh of the overview that must be rendered now."""
    return (
        f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: sessionid={cookie}\r\nHX-Request: true\r\n"
        f"Accept-Encoding: gzip\r\nX-Not-Before: {time.time()}\r\n\r\n"
    ).encode()


def kinds(ready: Stage) -> dict[str, Callable[[int], bytes]]:
    """Return the requests of each kind's clients, by name."""
    tokens, cookies = ready.tokens, ready.filled.cookies
    claims: Iterator[str] = itertools.cycle(claim for node in ready.filled.nodes for claim in node.claims)
    turns = itertools.count()

    def members(make: Callable[[int], bytes]) -> Callable[[int], bytes]:
        """Have the clients take turns among the tenants."""
        return lambda _: make(next(turns) % len(tokens))

    return {
        "GET claims/{uid}/": lambda _: get(f"claims/{next(claims)}/", ready.filled.token),
        # An operator's pages are full at every size.
        "GET claims/?limit=50": lambda _: get("claims/?limit=50", ready.filled.token),
        "GET claims/?limit=50&state=active": lambda _: get("claims/?limit=50&state=active", ready.filled.token),
        "POST claims/": members(lambda of: post(f"team-{of}", tokens[of])),
        "POST claims/, 1 tenant": lambda _: post("team-0", tokens[0]),
        "page part of a member": members(lambda of: part(cookies[of])),
        "page part of an operator": lambda _: part(ready.filled.cookie),
    }


def measure(ready: Stage, name: str, *, ports: list[int], clients: int, seconds: float) -> Row:
    """Measure one kind with so many clients at each port."""
    ask, before = kinds(ready)[name], ready.cpu_seconds()
    measured = uvloop.run(_drive(ports, ask, clients, seconds))
    after = ready.cpu_seconds()
    asked = sum(one.asked for one in measured)
    statuses = {status for one in measured for status in one.statuses}
    assert statuses <= {200, 201}, statuses
    latencies = [latency for one in measured for latency in one.latencies_ms] or [0.0]
    return {
        "request": name, "web servers": len(ports), "clients": clients * len(ports),
        "per second": len(latencies) / seconds, "p50 ms": quantile(latencies, 0.5), "p99 ms": quantile(latencies, 0.99),
        "max ms": max(latencies),
        **{f"{who} ms": (after[who] - before[who]) * 1000 / asked for who in ("web", "postgres")},
    }  # fmt: skip


async def _drive(ports: list[int], ask: Callable[[int], bytes], clients: int, seconds: float) -> list[load.Measured]:
    drives = (load.measure(port, ask, clients, seconds, warm_up=WARM_UP_SECONDS) for port in ports)
    return await asyncio.gather(*drives)
