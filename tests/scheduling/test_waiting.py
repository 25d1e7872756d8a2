"""`?wait=`: it answers when there is news, and occupies nothing meanwhile."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from apps.scheduling.models import Claim
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.waiting import WaitForClaim
from gpucloud import hints
from gpucloud.asgi import console
from tests.cast import Answer, Cast, Machine, give_plenty
from tests.ports import free_port
from tests.processes import eventually
from tests.scheduling.asgi_client import Request, call, in_database
from tests.scheduling.programs import program, sessions, threads
from tests.scheduling.routes import dump_database

CLAIM = {"tenant": "acme", "core_request": 10, "memory_mib": 100}


@pytest.fixture(autouse=True)
async def bus_is_closed() -> AsyncIterator[None]:
    """Close the bus: its connections belong to the event loop, and each test has its own loop."""
    yield
    await hints.bus().close()


@pytest.fixture
def machine(real_cast: Cast) -> Machine:
    give_plenty(real_cast.acme)
    return Machine("gpu1", real_cast.pool)


async def platform_does_its_part(cast: Cast, machine: Machine, *, after: float = 0.3) -> None:
    """Run a scheduler's round and an agent's report, a little later."""
    await asyncio.sleep(after)
    await in_database(lambda: run_round(cast.pool))
    await in_database(machine.obey)


async def while_waiting(request: Any, cast: Cast, machine: Machine) -> Answer:
    """Repeat until there is an answer: on a busy machine a round may come before the request."""
    asked = asyncio.ensure_future(request)
    while not asked.done():
        await platform_does_its_part(cast, machine)
    answer = await asked
    assert isinstance(answer, Answer)
    return answer


async def active(cast: Cast, machine: Machine) -> str:
    answer = await while_waiting(call(cast.max, "POST", "claims/?wait=10", CLAIM), cast, machine)
    return str(answer.body["uid"])


@pytest.mark.parametrize(("waiting", "seconds"), [(1, 1.0), (100, 1.0), (1000, 10.0)])
def test_a_thousand_waits_look_again_no_more_often_than_a_hundred(waiting: int, seconds: float) -> None:
    door = WaitForClaim(console)
    door.waiting = waiting
    assert door.pause() == seconds


async def test_a_post_answers_when_the_claim_is_in_force(real_cast: Cast, machine: Machine) -> None:
    begun = time.monotonic()
    answer = await while_waiting(call(real_cast.max, "POST", "claims/?wait=30", CLAIM), real_cast, machine)
    assert time.monotonic() - begun < 10
    assert (answer.status, answer.body["state"]) == (201, "active")
    assert answer.body["assignments"][0]["state"] == "in_force"
    assert answer.headers["ETag"] == f'"{answer.body["version"]}"'
    assert answer.headers["Location"] == f"/api/v1/claims/{answer.body['uid']}/"


async def test_a_patch_answers_when_the_new_limits_are_in_force(real_cast: Cast, machine: Machine) -> None:
    uid = await active(real_cast, machine)
    request = call(real_cast.max, "PATCH", f"claims/{uid}/?wait=30", {"core_request": 40})
    answer = await while_waiting(request, real_cast, machine)
    assert (answer.status, answer.body["generation"], answer.body["observed_generation"]) == (200, 2, 2)


@pytest.mark.parametrize(("method", "more"), [("DELETE", ""), ("POST", "release/")])
async def test_a_release_answers_when_it_is_done(real_cast: Cast, machine: Machine, method: str, more: str) -> None:
    uid = await active(real_cast, machine)
    answer = await while_waiting(call(real_cast.max, method, f"claims/{uid}/{more}?wait=30"), real_cast, machine)
    assert (answer.status, answer.body["state"]) == (200, "released")


async def test_at_the_end_of_the_wait_the_present_state_is_answered(real_cast: Cast, machine: Machine) -> None:
    begun = time.monotonic()
    answer = await call(real_cast.max, "POST", "claims/?wait=1", CLAIM)
    assert 1 <= time.monotonic() - begun < 5
    assert (answer.status, answer.body["state"]) == (201, "pending")


async def test_a_wait_of_nothing_does_not_wait(real_cast: Cast, machine: Machine) -> None:
    begun = time.monotonic()
    assert (await call(real_cast.max, "POST", "claims/?wait=0", CLAIM)).status == 201
    assert time.monotonic() - begun < 1


@pytest.mark.parametrize("wait", ["", "-1", "x", "301", "1.5", "9" * 5000, "%C2%B2", "%D9%A3", "1e1", "0x1"])
async def test_a_senseless_wait_is_refused(real_cast: Cast, machine: Machine, wait: str) -> None:
    before = await in_database(dump_database)
    answer = await call(real_cast.max, "POST", f"claims/?wait={wait}", CLAIM)
    assert (answer.status, answer.code) == (400, "invalid-fields")
    assert "wait" in answer.body["errors"]
    assert await in_database(dump_database) == before


async def test_a_refusal_does_not_wait(real_cast: Cast, machine: Machine) -> None:
    begun = time.monotonic()
    refused = await call(real_cast.max, "POST", "claims/?wait=30", {**CLAIM, "memory_mib": 10**6})
    foreign = await call(real_cast.gus, "POST", "claims/?wait=30", CLAIM)
    nobody = await call(real_cast.nobody, "POST", "claims/?wait=30", CLAIM)
    assert [answer.status for answer in (refused, foreign, nobody)] == [422, 400, 401]
    assert time.monotonic() - begun < 5


async def test_a_repeated_request_waits_for_the_same_claim(real_cast: Cast, machine: Machine) -> None:
    first = await call(real_cast.max, "POST", "claims/?wait=0", CLAIM, idempotency_key="k")
    again = await while_waiting(
        call(real_cast.max, "POST", "claims/?wait=30", CLAIM, idempotency_key="k"), real_cast, machine
    )
    assert first.body["state"] == "pending"
    assert (again.status, again.body["uid"], again.body["state"]) == (201, first.body["uid"], "active")
    assert again.headers["Idempotency-Replayed"] == "true"
    assert await in_database(Claim.objects.count) == 1


@pytest.mark.parametrize(
    ("method", "target"), [("GET", "claims/?wait=5"), ("POST", "tenants/?wait=5"), ("POST", "pools?wait=5")]
)
async def test_other_routes_do_not_know_it(real_cast: Cast, method: str, target: str) -> None:
    answer = await call(real_cast.olga, method, target, {"slug": "x", "name": "x"})
    assert (answer.status, answer.code) == (400, "invalid-fields")


async def test_a_preview_does_not_wait_and_stays_a_preview(real_cast: Cast, machine: Machine) -> None:
    uid = await active(real_cast, machine)
    begun = time.monotonic()
    answer = await call(real_cast.max, "PATCH", f"claims/{uid}/?dry_run=true&wait=30", {"core_request": 50})
    assert time.monotonic() - begun < 5
    assert (answer.body["dry_run"], answer.body["core_request"]) == (True, 50)


async def test_who_hangs_up_is_not_waited_for(real_cast: Cast, machine: Machine) -> None:
    begun = time.monotonic()
    body = json.dumps(CLAIM).encode()
    request = Request(real_cast.max, "POST", "claims/?wait=60", content_length=str(len(body)))
    await request.send(body)
    await asyncio.sleep(1)
    await request.exchange.send_input({"type": "http.disconnect"})
    assert (await request.answer()).body["state"] == "pending"
    assert time.monotonic() - begun < 10


async def test_the_form_without_a_slash_waits_too(real_cast: Cast, machine: Machine) -> None:
    answer = await while_waiting(call(real_cast.max, "POST", "claims?wait=30", CLAIM), real_cast, machine)
    assert answer.body["state"] == "active"


WAITERS = 40
POOL = 4


@pytest.mark.django_db(transaction=True)
def test_forty_waits_hold_neither_threads_nor_connections(real_cast: Cast) -> None:
    """The pool has no GPU, so every one of them waits to its end."""
    give_plenty(real_cast.acme)
    port = free_port()
    command = ("-m", "gpucloud.server", "--port", str(port), "--log-level", "warning")
    with program(*command, DATABASE_POOL_SIZE=str(POOL)) as server:
        assert eventually(lambda: serves(port), seconds=30)
        with ThreadPoolExecutor(1) as aside:
            waits = aside.submit(asyncio.run, wait_together(port, str(real_cast.max.token)))
            assert eventually(lambda: Claim.objects.count() == WAITERS, seconds=20)
            seen = []
            while not waits.done():
                seen.append((threads(server.pid), sessions()))
                time.sleep(0.02)
        assert waits.result() == ["pending"] * WAITERS
    assert min(count for count, _ in seen) < WAITERS / 2
    # A session that the pool replaces is visible beside its successor for a moment.
    assert max(count for _, count in seen) <= POOL + 2


def serves(port: int) -> bool:
    try:
        answer = asyncio.run(exchange(port, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
    except OSError:
        return False
    return answer[0] == 200


async def wait_together(port: int, token: str) -> list[str]:
    body = json.dumps(CLAIM)
    text = (
        f"POST /api/v1/claims/?wait=6 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
    )
    answers = await asyncio.gather(*(exchange(port, text) for _ in range(WAITERS)))
    assert {status for status, _ in answers} == {201}
    return [json.loads(text)["state"] for _, text in answers]


async def exchange(port: int, text: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text.encode())
    raw = await reader.read()
    writer.close()
    head, _, body = raw.partition(b"\r\n\r\n")
    if b"chunked" in head.lower():
        body = b"".join(body.split(b"\r\n")[1::2])
    return int(head.split()[1]), body
