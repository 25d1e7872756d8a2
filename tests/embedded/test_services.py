"""PostgreSQL and Valkey from wheels: they start for any user, keep the data, and never outlive their launcher."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from deploy import embedded
from deploy.embedded import places, postgres
from tests.processes import alive, eventually

pytestmark = pytest.mark.usefixtures("unset_addresses")

LAUNCHER = """
import json, sys, time
from pathlib import Path
from deploy import embedded
with embedded.services(Path(sys.argv[1]), durable=True) as running:
    print(json.dumps(dict(running.pids)), flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the state of services that have run and ended: PostgreSQL's initialisation takes a second each time."""
    state = tmp_path_factory.mktemp("ended") / "state"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DATABASE_URL", "REDIS_URL"):
            patch.delenv(name, raising=False)
        with embedded.services(state, durable=False) as running:
            assert set(running.pids) == {"postgres", "valkey"}
    yield state
    shutil.rmtree(state)


@pytest.fixture
def state(tmp_path: Path, ended: Path) -> Path:
    """Return a state of the test's own that was initialised before."""
    return shutil.copytree(ended, tmp_path / "state", symlinks=True)


def test_both_start_from_nothing_and_answer(tmp_path: Path) -> None:
    with embedded.services(tmp_path / "state", durable=False) as running:
        with psycopg.connect(running.database_url) as connection:
            assert connection.info.server_version >= 180000
        assert redis.Redis.from_url(running.redis_url).ping()
        assert set(running.pids) == {"postgres", "valkey"}


def test_they_are_gone_afterwards(state: Path) -> None:
    with embedded.services(state, durable=False) as running:
        pids = list(running.pids.values())
        assert all(map(alive, pids))
    assert not any(map(alive, pids))


def test_the_data_is_there_at_the_second_start(state: Path) -> None:
    with embedded.services(state, durable=True) as running, psycopg.connect(running.database_url) as first:
        first.execute("CREATE TABLE kept AS SELECT 42 AS number")
    with (
        embedded.services(state, durable=True) as running,
        psycopg.connect(running.database_url) as second,
    ):
        assert second.execute("SELECT number FROM kept").fetchone() == (42,)


def test_they_die_with_a_launcher_that_is_killed_and_the_next_start_finds_the_data(state: Path) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(state)], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert launcher.stdout is not None
    with launcher:
        pids = json.loads(launcher.stdout.readline()).values()
        with psycopg.connect(postgres.url(state)) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS number")
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
        # No pause: a second start waits for the first one's server by itself.
        with embedded.services(state, durable=True) as running, psycopg.connect(running.database_url) as again:
            assert again.execute("SELECT number FROM kept").fetchone() == (42,)
    assert eventually(lambda: not any(map(alive, pids)), seconds=10)


def test_a_lock_file_of_a_process_that_is_no_server_is_forgotten(state: Path) -> None:
    # As after a reboot, when the number in the file is another process' pid.
    (state / "postgres" / "postmaster.pid").write_text(f"{os.getpid()}\n{state}/postgres\n1\n5432\n\n\n")
    with embedded.services(state, durable=False) as running, psycopg.connect(running.database_url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_an_initialisation_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    state = places.private_directory(tmp_path / "state")
    (state / "postgres.new").mkdir()
    (state / "postgres.new" / "half").write_text("made")
    with embedded.services(state, durable=False):
        assert (state / "postgres" / "PG_VERSION").exists()


def test_addresses_that_are_given_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://elsewhere/db")
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere:6379/0")
    with embedded.services(tmp_path / "state", durable=False) as running:
        assert running.environment() == {
            "DATABASE_URL": "postgresql://elsewhere/db",
            "REDIS_URL": "redis://elsewhere:6379/0",
        }
        assert not running.pids


def test_nobody_else_may_enter_and_no_port_is_open(state: Path) -> None:
    with embedded.services(state, durable=False) as running:
        for place in (state, places.socket_directory(state)):
            assert stat.S_IMODE(place.stat().st_mode) == 0o700
        with psycopg.connect(running.database_url) as connection:
            assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
        assert redis.Redis.from_url(running.redis_url).config_get("port") == {"port": "0"}


def test_a_state_whose_path_is_too_long_for_sockets_gets_a_short_place(tmp_path: Path, ended: Path) -> None:
    state = shutil.copytree(ended, tmp_path / ("long-" * 30), symlinks=True)
    with embedded.services(state, durable=False) as running:
        assert redis.Redis.from_url(running.redis_url).ping()
        assert places.socket_directory(state) == places.socket_directory(state)
        assert state not in places.socket_directory(state).parents
    shutil.rmtree(places.socket_directory(state))


def test_a_link_in_the_place_of_a_private_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "state").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(places.PlaceUnusable):
        places.private_directory(tmp_path / "state")


def test_a_server_that_cannot_start_says_why(state: Path) -> None:
    (state / "postgres" / "postgresql.conf").write_text("no_such_setting = on\n")
    with pytest.raises(embedded.StartFailed, match="no_such_setting"), embedded.services(state, durable=False):
        pass
