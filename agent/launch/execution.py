"""`python -m agent exec CLAIM -- COMMAND…`: become a program that runs under a claim's limits.

Nothing stays behind: this process asks the agent, takes the environment and replaces itself, so that the exit code, the
signals, the terminal and the pid are the program's own.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec

from agent import local_wire
from agent.local_wire import Environment, Refusal, Request
from agent.server import rest

# As `env` and `docker run` have it: we failed, the program could not be run, the program was not found.
EXIT_FAILED = 125
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127
RETRY_SECONDS = 0.05
PR_SET_NO_NEW_PRIVS = 38
# Long enough for every successful start to stay silent.
SILENT_SECONDS = 1.0
# They give more access than a program under the claim needs, and its children would inherit them.
SECRETS = ("GPUCLOUD_TOKEN", "GPUCLOUD_TOKEN_FILE", "GPUCLOUD_CLAIM_SECRET")


class LaunchError(Exception):
    """Failure to start the program; the message is for the person who typed the command."""

    def __init__(self, words: str, *, code: int = EXIT_FAILED) -> None:
        super().__init__(words)
        self.code = code


class Key(NamedTuple):
    """The secret of a claim, and the socket of its agent."""

    secret: str
    socket: Path
    node: str | None = None


class _ClaimEnvironment(msgspec.Struct, frozen=True):
    """The fields that we need of `GET /api/v1/claims/{uid}/env/`."""

    secret: str
    agent_socket: str
    node: str | None = None


def detach() -> int | None:
    """Go on as the first process of a session of its own, as programs that are carried to other nodes must be.

    Return None there. This process waits for it, passes SIGINT and SIGTERM on, and returns its exit code.
    """
    child = os.fork()
    if child == 0:
        os.setsid()
        # CRIU restores no right that a program may gain by what it starts.
        ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        return None
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(child, number))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def launch(claim: str, command: list[str], *, wait_seconds: float, output: Path | None = None) -> NoReturn:
    """Replace this process by the command under the claim's limits. Raises LaunchError.

    `output`: the file to which its standard output and error are appended, with nothing on its standard input; None:
    those of this process.
    """
    environment = os.environ.copy()
    key = find_key(claim, environment)
    answer = _request_environment(claim, key, wait_seconds=wait_seconds)
    for name in SECRETS:
        environment.pop(name, None)
    apply(answer, environment)
    # Python ignores these two; the program starts with the defaults that a shell would give it.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    if output is not None:
        _redirect(output)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - becoming the command is the purpose
    except FileNotFoundError as error:
        raise LaunchError(f"{command[0]}: command not found", code=EXIT_NOT_FOUND) from error
    except OSError as error:
        raise LaunchError(f"{command[0]}: {error.strerror}", code=EXIT_NOT_EXECUTABLE) from error


def _redirect(output: Path) -> None:
    try:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise LaunchError(f"{output}: {error.strerror}") from error
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.closerange(3, 64)


def give(claim: str, user: tuple[int, int] | None) -> None:
    """Make this user, or the caller, the owner of the claim's usage page. Raises LaunchError."""
    key = find_key(claim, os.environ)
    answer = _ask_agent(key, Request(ask="page", claim=claim, secret=key.secret, user=user))
    if isinstance(answer, Refusal):
        raise LaunchError(answer.detail)


def find_key(claim: str, environment: Mapping[str, str]) -> Key:
    """Return the claim's secret and its agent's socket, from the environment or the server. Raises LaunchError."""
    secret = environment.get("GPUCLOUD_CLAIM_SECRET")
    path = environment.get("GPUCLOUD_AGENT_SOCKET")
    if secret and path:
        return Key(secret, Path(path))
    url = environment.get("GPUCLOUD_URL")
    if not url:
        raise LaunchError(
            "Where is the claim's secret? Set GPUCLOUD_URL with GPUCLOUD_TOKEN or GPUCLOUD_TOKEN_FILE to ask the "
            "control plane, or GPUCLOUD_CLAIM_SECRET with GPUCLOUD_AGENT_SOCKET."
        )
    if not url.startswith(("http://", "https://")):
        raise LaunchError(f"GPUCLOUD_URL={url} is not an address like http://HOST:PORT.")
    return _ask_server(claim, url.rstrip("/"), _token(environment))


def apply(answer: Environment, environment: MutableMapping[str, str]) -> None:
    """Put the agent's variables into the environment; lists keep the caller's entries."""
    environment.update(answer.set)
    for name, value in answer.prepend.items():
        others = [part for part in environment.get(name, "").split(":") if part and part != value]
        environment[name] = ":".join([value, *others])
    for name, value in answer.append.items():
        # ld.so takes spaces and colons between preloaded libraries.
        others = [part for part in environment.get(name, "").replace(" ", ":").split(":") if part and part != value]
        environment[name] = ":".join([*others, value])


def _token(environment: Mapping[str, str]) -> str:
    token = environment.get("GPUCLOUD_TOKEN")
    path = environment.get("GPUCLOUD_TOKEN_FILE")
    if not token and path:
        try:
            token = Path(path).read_text().strip()
        except OSError as error:
            raise LaunchError(f"GPUCLOUD_TOKEN_FILE={path}: {error.strerror}.") from error
    if not token:
        raise LaunchError("The control plane wants a token: set GPUCLOUD_TOKEN or GPUCLOUD_TOKEN_FILE.")
    return token


def _ask_server(claim: str, url: str, token: str) -> Key:
    headers = {"Authorization": f"Bearer {token}"}
    try:
        answer = rest.request(f"{url}/api/v1/claims/{claim}/env/", headers=headers)
        claim_environment = msgspec.convert(answer, _ClaimEnvironment)
    except rest.Refused as error:
        if error.status == 404:
            raise LaunchError(f"Unknown claim {claim}: there is none of this uid that your token may see.") from error
        raise LaunchError(f"The control plane refused: {error}") from error
    except rest.Unreachable as error:
        raise LaunchError(f"The control plane cannot be used: {error}") from error
    except msgspec.ValidationError as error:
        raise LaunchError(f"The control plane's answer about claim {claim} is not valid: {error}.") from error
    return Key(claim_environment.secret, Path(claim_environment.agent_socket), claim_environment.node)


def _request_environment(claim: str, key: Key, *, wait_seconds: float) -> Environment:
    """Return the agent's environment for the claim; wait while the refusal may pass. Raises LaunchError."""
    started = time.monotonic()
    announced = False
    while True:
        answer = _ask_agent(key, Request(claim=claim, secret=key.secret))
        if isinstance(answer, Environment):
            return answer
        waited = time.monotonic() - started
        if answer.code not in local_wire.PASSING or waited >= wait_seconds:
            after = f" (after {waited:.0f} s)" if answer.code in local_wire.PASSING and waited >= 1 else ""
            raise LaunchError(f"{answer.detail}{after}")
        if not announced and waited >= SILENT_SECONDS:
            announced = True
            sys.stderr.write(f"gpucloud: waiting: {answer.detail}\n")
        time.sleep(RETRY_SECONDS)


def _ask_agent(key: Key, request: Request) -> Environment | Refusal:
    try:
        answer = local_wire.ask(key.socket, request)
    except local_wire.Unreachable as error:
        where = f" The claim is on node {key.node}: is this that machine, and does its agent run?" if key.node else ""
        raise LaunchError(f"{error}{where}") from error
    if isinstance(answer, Environment | Refusal):
        return answer
    raise LaunchError(f"The process at {key.socket} is not an agent.")
