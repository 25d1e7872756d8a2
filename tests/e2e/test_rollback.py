"""The upgrade of docs/operations.md over migrations, and its rollback by the dump from before."""

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from django.conf import settings

from deploy.embedded.postgres import PostgresMissing, binary

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
# Before many migrations of three apps; GPUCLOUD_UPGRADE_FROM names another version.
FORMER = os.environ.get("GPUCLOUD_UPGRADE_FROM", "f94cd304")
DATABASE = "rollback"


class Version:
    """The programs of one version on the shared database."""

    def __init__(self, source: Path, url: str) -> None:
        self.source = source
        self.environment = os.environ | {"DATABASE_URL": url, "PYTHONPATH": "", "LOG_LEVEL": "ERROR"}

    def manage(self, *arguments: str) -> str:
        """Run a command of manage.py and return what it printed; fail with its output."""
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "manage.py", *arguments],
            cwd=self.source,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def migrations_missing(self) -> bool:
        return "[ ]" in self.manage("showmigrations", "--plan")


@pytest.fixture
def address() -> Iterator[str]:
    """Create an empty database; return its URL and drop it afterwards."""
    server = os.environ["DATABASE_URL"]
    recreate(server)
    yield urlsplit(server)._replace(path=f"/{DATABASE}").geturl()
    execute(server, f"DROP DATABASE {DATABASE} WITH (FORCE)")


def execute(server: str, *statements: str) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def recreate(server: str) -> None:
    execute(server, f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)", f"CREATE DATABASE {DATABASE}")


@pytest.fixture
def former(address: str, tmp_path: Path) -> Version:
    """Unpack the former version."""
    packed = subprocess.run(
        ["git", "-c", "safe.directory=*", "archive", FORMER], cwd=settings.BASE_DIR, capture_output=True, check=False
    )
    if packed.returncode:
        pytest.skip(f"commit {FORMER} is not in this clone")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as files:
        files.extractall(tmp_path / "former", filter="data")
    return Version(tmp_path / "former", address)


def postgres_tool(name: str) -> str:
    try:
        return binary(name)
    except PostgresMissing as missing:
        pytest.skip(str(missing))


def facts(address: str) -> list[tuple[object, ...]]:
    """Return what people would miss: tenants, claims and their states, quotas and what is used of them."""
    with psycopg.connect(address) as connection:
        return [
            *connection.execute("SELECT uid, name, state FROM scheduling_claim ORDER BY uid").fetchall(),
            *connection.execute("SELECT id, hard, used FROM quotas_resourcequota ORDER BY id").fetchall(),
            *connection.execute("SELECT count(*), max(id) FROM quotas_auditevent").fetchall(),
            *connection.execute("SELECT username, password FROM quotas_user ORDER BY username").fetchall(),
        ]


def test_an_upgrade_is_rolled_back_by_the_dump_from_before(former: Version, address: str, tmp_path: Path) -> None:
    former.manage("migrate", "--no-input", "--verbosity", "0")
    former.manage("seed_demo", "--state-dir", str(tmp_path / "demo"))
    before = facts(address)
    dump = tmp_path / "gpucloud.dump"
    subprocess.run([postgres_tool("pg_dump"), "--format", "custom", "--file", dump, "--dbname", address], check=True)

    now = Version(settings.BASE_DIR, address)
    assert now.migrations_missing()
    now.manage("migrate", "--no-input", "--verbosity", "0")
    assert not now.migrations_missing()
    assert facts(address)[: len(before) - 1] == before[: len(before) - 1]
    now.manage("check_ledger")
    now.manage("verify_audit")
    now.manage("seed_demo", "--state-dir", str(tmp_path / "demo"))

    recreate(os.environ["DATABASE_URL"])
    subprocess.run([postgres_tool("pg_restore"), "--dbname", address, "--exit-on-error", dump], check=True)
    assert facts(address) == before
    former.manage("check_ledger")
    former.manage("verify_audit")
    assert not former.migrations_missing()
