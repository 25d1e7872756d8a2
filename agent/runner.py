"""`python -m agent run`: settings, a running daemon, an exit code."""

import asyncio
import os
import resource
import sys

from agent import settings, statefile
from agent.backoff import Backoff
from agent.claims.abi import PageError
from agent.daemon import Daemon
from agent.logs import log
from agent.rundir import RunDir, RunDirError
from agent.server import enrolment
from agent.server.enrolment import EnrolmentFailed
from agent.server.identity import Identity
from agent.server.link import CredentialRefused
from agent.settings import Settings, SettingsError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_ENROLLED = 3
EXIT_REFUSED = 4
# An operator waits for it at a terminal.
ENROL_SECONDS = 60.0


def run(*, server: str | None, state_dir: str | None) -> int:
    """Run the daemon; return only if it could not start."""
    token = enrolment.take_token()
    try:
        chosen = settings.read(server=server, state_dir=state_dir, environment=os.environ)
    except SettingsError as error:
        log.error("bad-settings", reason=str(error))  # noqa: TRY400
        return EXIT_USAGE
    _raise_file_limit()
    run_dir = RunDir(chosen.run_dir)
    try:
        chosen.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        run_dir.take()
    except (OSError, RunDirError) as error:
        log.error("not-started", reason=str(error))  # noqa: TRY400
        return EXIT_FAILED
    return asyncio.run(_work(chosen, run_dir, token))


def enrol(*, server: str | None, state_dir: str | None, anew: bool) -> int:
    """Make this machine a node, unless it is one; return the exit code."""
    token = enrolment.take_token()
    try:
        chosen = settings.read(server=server, state_dir=state_dir, environment=os.environ)
    except SettingsError as error:
        return _fail(error, EXIT_USAGE)
    try:
        chosen.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if anew:
            (chosen.state_dir / "agent.json").unlink(missing_ok=True)
        me = asyncio.run(_enrol(chosen, token))
    except OSError as error:
        return _fail(f"{chosen.state_dir}: {error.strerror}", EXIT_FAILED)
    except TimeoutError:
        return _fail(f"{chosen.server} has not answered within {ENROL_SECONDS:g} s", EXIT_FAILED)
    except (EnrolmentFailed, statefile.Damaged) as error:
        return _fail(error, EXIT_NOT_ENROLLED)
    sys.stdout.write(f"This machine is node {me.node_name}.\n")
    return 0


async def _enrol(chosen: Settings, token: str | None) -> Identity:
    backoff = Backoff(chosen.backoff_cap_seconds)
    async with asyncio.timeout(ENROL_SECONDS):
        return await enrolment.enrol(
            server=chosen.server, state_dir=chosen.state_dir, token=token, cluster=chosen.cluster, backoff=backoff
        )


def _fail(words: object, code: int) -> int:
    sys.stderr.write(f"gpucloud: {words}\n")
    return code


async def _work(chosen: Settings, run_dir: RunDir, token: str | None) -> int:
    code = await _live(chosen, run_dir, token)
    sys.stderr.flush()
    # At once: a thread may block in a driver call or wait for a server, and asyncio would wait for it.
    os._exit(code)


async def _live(chosen: Settings, run_dir: RunDir, token: str | None) -> int:
    try:
        await Daemon(chosen, run_dir, token=token).run()
    except (EnrolmentFailed, statefile.Damaged) as error:
        log.error("not-enrolled", reason=str(error))  # noqa: TRY400
        return EXIT_NOT_ENROLLED
    except CredentialRefused as error:
        log.error(  # noqa: TRY400
            "credential-refused",
            reason=str(error),
            cure=f"enrol again: remove {chosen.state_dir / 'agent.json'} and start with a new GPUCLOUD_ENROL_TOKEN",
        )
        return EXIT_REFUSED
    except PageError as error:
        log.error("not-started", reason=str(error))  # noqa: TRY400
        return EXIT_FAILED
    except Exception:
        log.exception("failed")
        return EXIT_FAILED
    return 0


def _raise_file_limit() -> None:
    """Raise the limit of open files to the hard limit, since each claim holds a file open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
