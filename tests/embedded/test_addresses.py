"""The forms of DATABASE_URL and REDIS_URL, with every client that gets them.

The docstring of ``deploy.embedded`` is tested here: a new version of a client that parses them differently is noticed
before anything else breaks.
"""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis
from celery import Celery
from django.core.cache.backends.redis import RedisCache
from kombu.connection import Connection

from deploy import embedded


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.Services]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DATABASE_URL", raising=False)
        patch.delenv("REDIS_URL", raising=False)
        with embedded.services(tmp_path_factory.mktemp("addresses"), durable=False) as services:
            yield services


@pytest.fixture
def socket(running: embedded.Services) -> Path:
    return Path(running.redis_url.removeprefix("unix://"))


def test_psycopg_takes_the_database_address_as_it_is(running: embedded.Services) -> None:
    with psycopg.connect(running.database_url) as connection:
        assert connection.execute("SELECT current_user, current_database()").fetchone() == ("gpucloud", "gpucloud")


def test_redis_names_a_database_in_the_query(running: embedded.Services) -> None:
    with redis.Redis.from_url(f"{running.redis_url}?db=3") as three, redis.Redis.from_url(running.redis_url) as zero:
        three.set("here", "3")
        assert zero.get("here") is None


def test_redis_takes_a_number_after_a_slash_for_a_part_of_the_path(running: embedded.Services) -> None:
    with redis.Redis.from_url(f"{running.redis_url}/3") as client, pytest.raises(redis.ConnectionError):
        client.ping()


def test_kombu_has_a_scheme_of_its_own(socket: Path) -> None:
    with Connection(f"redis+socket://{socket}?virtual_host=3") as broker:
        connection = broker.default_channel.client.connection_pool.connection_kwargs
        assert broker.default_channel.client.ping()
    assert (connection["path"], connection["db"]) == (str(socket), 3)


def test_kombu_does_not_know_the_scheme_of_redis(running: embedded.Services) -> None:
    with pytest.raises(KeyError, match="No such transport"):
        Connection(running.redis_url).connect()


def test_celery_keeps_results_there_too(socket: Path) -> None:
    address = f"redis+socket://{socket}?virtual_host=4"
    # Not the current app: tasks of later tests would keep results where no server is then.
    backend = Celery(broker=address, backend=address, set_as_current=False).backend
    assert backend.client.ping()
    assert backend.client.connection_pool.connection_kwargs["db"] == 4


def test_djangos_cache_uses_it(running: embedded.Services) -> None:
    cache = RedisCache(f"{running.redis_url}?db=6", {})
    cache.set("kept", 1)
    assert cache.get("kept") == 1
