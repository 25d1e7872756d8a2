"""Bodies as a server passes them on: with a length, in chunks, too large."""

import json
from collections.abc import AsyncIterator

import pytest

from gpucloud import hints
from gpucloud.api import bodies
from tests.cast import Cast, give_plenty
from tests.scheduling.asgi_client import Request, call, in_database
from tests.scheduling.routes import dump_database

CLAIM = {"tenant": "acme", "core_request": 10, "memory_mib": 100}
MEBIBYTE = b"x" * (1 << 20)


@pytest.fixture(autouse=True)
async def bus_is_closed() -> AsyncIterator[None]:
    """Close the bus: its connections belong to the event loop, and each test has its own loop."""
    yield
    await hints.bus().close()


@pytest.fixture
def rich(real_cast: Cast) -> Cast:
    give_plenty(real_cast.acme)
    return real_cast


async def test_a_body_with_a_length_is_read(rich: Cast) -> None:
    assert (await call(rich.max, "POST", "claims/", CLAIM)).status == 201


async def test_a_body_in_chunks_is_read_as_well(rich: Cast) -> None:
    request = Request(rich.max, "POST", "claims/", transfer_encoding="chunked")
    text = json.dumps(CLAIM).encode()
    for at in range(0, len(text), 10):
        await request.send(text[at : at + 10], more=True)
    await request.send(b"")
    answer = await request.answer()
    assert (answer.status, answer.body["core_request"]) == (201, 10)


async def test_ten_megabytes_with_a_length_are_refused_unread(rich: Cast) -> None:
    before = await in_database(dump_database)
    request = Request(rich.max, "POST", "claims/", content_length="10000000")
    answer = await request.answer()
    assert (answer.status, answer.code) == (413, "body-too-large")
    assert await in_database(dump_database) == before


@pytest.mark.parametrize("length", ["1000000000000000000", "9" * 400])
async def test_a_length_beyond_every_disk_is_refused_unread(rich: Cast, length: str) -> None:
    assert (await Request(rich.nobody, "POST", "claims/", content_length=length).answer()).code == "body-too-large"


async def test_ten_megabytes_in_chunks_are_refused_after_the_first(rich: Cast) -> None:
    before = await in_database(dump_database)
    request = Request(rich.max, "POST", "claims/", transfer_encoding="chunked")
    await request.send(MEBIBYTE, more=True)
    await request.send(b"x", more=True)
    answer = await request.answer()
    assert (answer.status, answer.code) == (413, "body-too-large")
    assert await in_database(dump_database) == before


async def test_unfinished_large_bodies_are_bounded_together_and_small_ones_go_on(
    rich: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MOST_HELD_BYTES", 2 << 20)
    half_open = [
        Request(rich.nobody, "POST", "claims/", transfer_encoding="chunked"),
        Request(rich.nobody, "POST", "claims/", content_length=str(1 << 20)),
    ]
    for request in half_open:
        await request.send(b"x" * 1000, more=True)
        # The body is being read once nothing more comes out.
        assert await request.exchange.receive_nothing(timeout=0.2)
    refused = await Request(rich.max, "POST", "claims/", content_length="100000").answer()
    assert (refused.status, refused.code, refused.headers["Retry-After"]) == (503, "too-many-bodies", "10")
    assert (await call(rich.max, "POST", "claims/", CLAIM)).status == 201
    for request in half_open:
        await request.exchange.send_input({"type": "http.disconnect"})
        await request.exchange.wait(timeout=20)
    large = {**CLAIM, "name": "x" * 100, "nonsense": "x" * 100_000}
    assert (await call(rich.max, "POST", "claims/", large)).status == 400


async def test_a_request_without_a_body_is_none_the_worse(rich: Cast) -> None:
    request = Request(rich.max, "GET", "claims/")
    await request.send(b"")
    assert (await request.answer()).status == 200
