"""A scheduler that leads no pool follows all, and takes over with the cache that it has."""

import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db import connection

from apps.quotas.models import Pool
from apps.quotas.principals import SYSTEM
from apps.quotas.services.tenants import create_pool
from apps.scheduling.management.commands import scheduler
from apps.scheduling.management.commands.scheduler import Command
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.cycles.comparing import compare
from apps.scheduling.services.cycles.notices import Session, _lock_of
from apps.scheduling.services.cycles.pool_cache import PoolCache
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.failures import Backoff
from tests.cast import Cast, Machine, ask, give_plenty
from tests.processes import eventually

pytestmark = pytest.mark.django_db(transaction=True)


class Leader:
    """Another scheduler's session, which holds the locks of pools."""

    def __init__(self) -> None:
        name = str(connection.settings_dict["NAME"])
        url = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}").geturl()
        self._link: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True)

    def lead(self, pool: Pool) -> None:
        assert self._link.execute("SELECT pg_try_advisory_lock(%s)", [_lock_of(pool)]).fetchone() == (True,)

    def die(self) -> None:
        self._link.close()


@pytest.fixture
def leader(real_cast: Cast) -> Iterator[Leader]:
    give_plenty(real_cast.acme)
    Machine("gpu1", real_cast.pool)
    it = Leader()
    it.lead(real_cast.pool)
    yield it
    it.die()


@pytest.fixture
def command(leader: Leader) -> Command:
    """Return a scheduler beside the leader."""
    made = Command()
    made.backoff = Backoff(first_seconds=1, most_seconds=1)
    made.session = Session()
    made._lead()
    return made


def test_the_follower_places_what_waits_without_reading_the_pool(
    real_cast: Cast, leader: Leader, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (set(command.caches), set(command.followed)) == (set(), {real_cast.pool.pk})
    claim = ask(real_cast)
    command._receive()
    assert not command._misses_leader()
    leader.die()
    # The server frees the lock a moment after its client has closed the connection.
    assert eventually(command._misses_leader, seconds=10)

    def read(pool: Pool) -> PoolCache:
        raise AssertionError("the pool was read anew")

    monkeypatch.setattr(scheduler, "PoolCache", read)
    command._lead()
    assert (set(command.caches), set(command.followed)) == ({real_cast.pool.pk}, set())
    assert Claim.objects.get(pk=claim.pk).state == "assigned"


def test_the_follower_knows_what_the_leader_placed_and_what_was_released(real_cast: Cast, command: Command) -> None:
    machine = Machine("gpu2", real_cast.pool)
    claims = [ask(real_cast, core_request=30, memory_mib=100) for _ in range(6)]
    run_round(real_cast.pool)
    machine.obey()
    release_claim(principal=SYSTEM, claim=claims[0])
    [cache] = command.followed.values()
    # The control: without its notices, the follower knows none of it.
    assert len(cache.devices) == 4
    command._receive()
    assert not cache.waiting
    assert compare(cache) == 0


def test_the_record_of_a_followed_pool_does_not_grow(
    real_cast: Cast, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "MOST_FOLLOWED_STEPS", 3)
    for _ in range(5):
        ask(real_cast, core_request=1, memory_mib=1)
    command._receive()
    [cache] = command.followed.values()
    assert cache.journal.pending == 5
    command._lead()
    assert cache.journal.pending == 0


def test_who_leads_a_pool_reads_no_other_that_is_led(real_cast: Cast, leader: Leader) -> None:
    other = create_pool(principal=SYSTEM, name="other")
    command = Command()
    command.backoff = Backoff(first_seconds=1, most_seconds=1)
    command.session = Session()
    command._lead()
    assert (set(command.caches), set(command.followed)) == ({other.pk}, set())


def test_a_pool_that_is_gone_is_followed_no_longer(leader: Leader, command: Command) -> None:
    other = create_pool(principal=SYSTEM, name="other")
    leader.lead(other)
    command._lead()
    assert other.pk in command.followed
    other.delete()
    command._lead()
    assert other.pk not in command.followed
