"""Launcher of a program under a claim: gets the environment from the agent's socket, then replaces this process.

`child.py` starts it as a file of its own, with `python -I`: it must be a separate process, because the agent treats the
process that asks as a process of the claim, and ends it with the claim. Standard library only, so that it starts at
once and imports nothing from the program's own directory.

    python -I launch.py CLAIM COMMAND [ARGUMENT ...]       GPUCLOUD_CLAIM_SECRET and GPUCLOUD_AGENT_SOCKET are set

One JSON line each way. Exit codes as `env` and `docker run` have them.
"""

import json
import os
import signal
import socket
import sys
import time
from typing import Any

EXIT_FAILED, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND = 125, 126, 127
# The agent may not know a new claim yet.
PASSING = frozenset({"unknown-claim", "not-in-force", "busy"})
WAIT_SECONDS, PAUSE_SECONDS, TIMEOUT_SECONDS = 10.0, 0.05, 5.0
MOST_BYTES = 4 << 20
# These secrets give more access than a program under the claim needs, and its children would inherit them.
SECRETS = ("GPUCLOUD_TOKEN", "GPUCLOUD_TOKEN_FILE", "GPUCLOUD_CLAIM_SECRET")


Answer = dict[str, Any]


def main(claim: str, command: list[str]) -> int:
    """Replace this process by the command; return an exit code if that failed."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl-C before the program has started ends this process without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    environment = dict(os.environ)
    path = environment["GPUCLOUD_AGENT_SOCKET"]
    answer = request_environment(path, {"claim": claim, "secret": environment["GPUCLOUD_CLAIM_SECRET"]})
    if isinstance(answer, str):
        return fail(f"the claim cannot be used here: {answer}", EXIT_FAILED)
    for name in SECRETS:
        environment.pop(name, None)
    put_on(answer, environment)
    environment["GPUCLOUD_CLAIM"] = claim
    # Python ignores these two signals; the program starts with a shell's defaults.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - becoming the command is the purpose
    except FileNotFoundError:
        return fail(f"{command[0]}: command not found", EXIT_NOT_FOUND)
    except OSError as error:
        return fail(f"{command[0]}: {error.strerror}", EXIT_NOT_EXECUTABLE)


def request_environment(path: str, request: dict[str, str]) -> Answer | str:
    """Return the agent's environment, after temporary refusals; or the reason of a refusal."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            answer = ask(path, request)
        except (OSError, ValueError) as error:
            return f"no agent answers at {path}: {error}"
        if answer.get("answer") == "environment":
            return answer
        if answer.get("code") not in PASSING or time.monotonic() > deadline:
            return str(answer.get("detail", answer))
        time.sleep(PAUSE_SECONDS)


def ask(path: str, request: dict[str, str]) -> Answer:
    """Send one line and return the answer.

    Raises OSError or ValueError.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(TIMEOUT_SECONDS)
        peer.connect(path)
        peer.sendall(json.dumps(request).encode() + b"\n")
        with peer.makefile("rb") as lines:
            answer = json.loads(lines.readline(MOST_BYTES))
    if not isinstance(answer, dict):
        raise ValueError("its answer is no object")  # noqa: TRY004 - as for other answers that make no sense
    return answer


def put_on(answer: Answer, environment: dict[str, str]) -> None:
    """Set the agent's variables; lists keep the caller's entries."""
    environment.update(answer["set"])
    for name, value in answer["prepend"].items():
        others = [part for part in environment.get(name, "").split(":") if part and part != value]
        environment[name] = ":".join([value, *others])
    for name, value in answer["append"].items():
        # ld.so accepts spaces and colons between preloaded libraries.
        others = [part for part in environment.get(name, "").replace(" ", ":").split(":") if part and part != value]
        environment[name] = ":".join([*others, value])


def fail(words: str, code: int) -> int:
    """Print the failure; return the exit code."""
    sys.stderr.write(f"gpucloud: {words}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
