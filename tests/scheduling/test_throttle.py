"""The throttle: one bucket per caller, the same for all server processes, and open while Redis is down."""

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from gpucloud.api import throttles
from tests.cast import Api, Cast, give_plenty, token_for
from tests.processes import eventually
from tests.scheduling.asgi_client import call, in_database

BURST = 5


@pytest.fixture(autouse=True)
def small_buckets(settings: Any) -> Iterator[None]:
    """Set a rate so low that a bucket does not fill during a test, and a prefix for this test."""
    settings.THROTTLE_PER_SECOND, settings.THROTTLE_BURST = 1, BURST
    settings.REDIS_PREFIX = f"{settings.REDIS_PREFIX}-{uuid.uuid4().hex}"
    yield
    throttles._redis.cache_clear()


def until_refused(who: Api, *, most: int = BURST * 2) -> tuple[int, Any]:
    """Return the number of accepted requests, and the refusal."""
    for count in range(most):
        answer = who.get("me/")
        if answer.status != 200:
            return count, answer
    raise AssertionError(f"{most} requests were let through")


def test_who_has_had_the_burst_is_told_when_to_come_again(cast: Cast) -> None:
    passed, refusal = until_refused(cast.max)
    # One a second comes back; a slow machine may take a second or two for these.
    assert BURST <= passed < BURST * 2
    assert (refusal.status, refusal.code) == (429, "throttled")
    assert (refusal.body["per_second"], refusal.body["burst"]) == (1, BURST)
    assert refusal.headers["Retry-After"] == "1"
    assert refusal.headers["RateLimit"].startswith('"caller";r=0;t=')


def test_every_answer_says_what_is_left(cast: Cast) -> None:
    answer = cast.max.get("me/")
    assert answer.headers["RateLimit-Policy"] == f'"caller";q={BURST};w={BURST}'
    assert answer.headers["RateLimit"] == f'"caller";r={BURST - 1};t=1'
    assert cast.max.get("claims/?colour=red").headers["RateLimit"].startswith('"caller";r=')


def test_callers_do_not_empty_each_others_buckets(cast: Cast) -> None:
    until_refused(cast.max)
    assert cast.anna.get("me/").status == 200
    assert Api(token_for(cast.acme)).get("me/").status == 200


def test_a_bucket_fills_again() -> None:
    def taken() -> bool:
        answer = throttles.Buckets().take("token:x", per_second=10, burst=2)
        assert answer is not None
        return answer[0] >= 0

    assert eventually(lambda: not taken(), seconds=20)
    assert eventually(taken, seconds=20)


def test_a_clock_of_redis_that_was_set_back_shuts_nobody_out(settings: Any) -> None:
    ahead = (time.time() + 600) * 1e6
    with Redis.from_url(settings.REDIS_URL) as client:
        client.set(f"{settings.REDIS_PREFIX}:throttle:token:x", f"{ahead:.2f}")
    assert throttles.Buckets().take("token:x", per_second=1, burst=2) == (1, 0)


def test_server_processes_share_a_bucket(cast: Cast) -> None:
    until_refused(cast.max)
    throttles._redis.cache_clear()  # another process would have a connection of its own
    assert cast.max.get("me/").status == 429


def test_an_agent_that_enrols_is_counted_by_its_address(db: None) -> None:
    body = {"token": "gpe_wrong", "key_digest": "0" * 64}
    answers = [Api().post("nodes/enrol/", body).status for _ in range(BURST * 2)]
    assert answers[:BURST] == [403] * BURST
    assert 429 in answers


def test_without_a_rate_nobody_is_counted(cast: Cast, settings: Any) -> None:
    settings.THROTTLE_PER_SECOND = 0
    answers = [cast.max.get("me/") for _ in range(BURST * 2)]
    assert {answer.status for answer in answers} == {200}
    assert "RateLimit" not in answers[0].headers


@pytest.mark.parametrize("address", ["unix://{gone}", "redis://127.0.0.1:1/0"])
def test_a_redis_that_is_away_lets_everybody_pass(cast: Cast, settings: Any, tmp_path: Path, address: str) -> None:
    settings.REDIS_URL = address.format(gone=tmp_path / "nobody.sock")
    throttles._redis.cache_clear()
    assert {cast.max.get("me/").status for _ in range(BURST * 2)} == {200}


def test_a_redis_that_does_not_answer_is_left_alone_for_a_moment(settings: Any, caplog: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    moments = iter([100.0, 100.0, 100.4, 100.8, 101.2, 101.2])
    buckets = throttles.Buckets(clock=lambda: next(moments))
    assert [buckets.take("x", per_second=1, burst=1) for _ in range(4)] == [None] * 4
    assert len(caplog.records) == 2, "asked at 100.0 and at 101.2"


async def test_looking_again_while_one_waits_is_not_counted(real_cast: Cast, monkeypatch: Any) -> None:
    counted, take = [], throttles.Buckets.take

    def counting(buckets: throttles.Buckets, caller: str, **limits: int) -> tuple[int, int] | None:
        counted.append(caller)
        return take(buckets, caller, **limits)

    monkeypatch.setattr(throttles.Buckets, "take", counting)
    await in_database(lambda: give_plenty(real_cast.acme))
    body = {"tenant": "acme", "core_request": 10, "memory_mib": 100}
    answer = await call(real_cast.max, "POST", "claims/?wait=1", body)
    assert (answer.status, answer.body["state"]) == (201, "pending")
    assert counted == [real_cast.member.pk]
