"""Become a program under a claim: ask the agent's socket for the environment, put it on, replace this process.

Started as a file of its own, with `python -I`, by `child.py`: it must be a process of its own, because the agent takes
whoever asks for a process of the claim, and ends it with the claim. Standard library only, so that it starts at once
and finds nothing of the program's own directory.

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
# The agent may not have heard of a new claim yet.
PASSING = frozenset({"unknown-claim", "not-in-force", "busy"})
WAIT_SECONDS, PAUSE_SECONDS, TIMEOUT_SECONDS = 10.0, 0.05, 5.0
MOST_BYTES = 4 << 20
# They open more than a program under the claim has to do with, and its children would inherit them.
SECRETS = ("GPUCLOUD_TOKEN", "GPUCLOUD_TOKEN_FILE", "GPUCLOUD_CLAIM_SECRET")


Answer = dict[str, Any]


def main(claim: str, command: list[str]) -> int:
    """Replace this process by the command; an exit code where that failed."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl-C before the program has started ends us without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    environment = dict(os.environ)
    path = environment["GPUCLOUD_AGENT_SOCKET"]
    answer = admitted(path, {"claim": claim, "secret": environment["GPUCLOUD_CLAIM_SECRET"]})
    if isinstance(answer, str):
        return failed(f"the claim cannot be used here: {answer}", EXIT_FAILED)
    for name in SECRETS:
        environment.pop(name, None)
    put_on(answer, environment)
    environment["GPUCLOUD_CLAIM"] = claim
    # Python ignores these two; the program starts with what it would have had from a shell.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - becoming the command is the purpose
    except FileNotFoundError:
        return failed(f"{command[0]}: command not found", EXIT_NOT_FOUND)
    except OSError as error:
        return failed(f"{command[0]}: {error.strerror}", EXIT_NOT_EXECUTABLE)


def admitted(path: str, request: dict[str, str]) -> Answer | str:
    """The agent's environment, waiting for what time may cure; or why not, in words."""
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
    """One line there, one line back. Raises OSError or ValueError."""
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
    """The agent's variables; lists keep what the caller had."""
    environment.update(answer["set"])
    for name, value in answer["prepend"].items():
        others = [part for part in environment.get(name, "").split(":") if part and part != value]
        environment[name] = ":".join([value, *others])
    for name, value in answer["append"].items():
        # ld.so takes spaces and colons between preloaded libraries.
        others = [part for part in environment.get(name, "").replace(" ", ":").split(":") if part and part != value]
        environment[name] = ":".join([*others, value])


def failed(words: str, code: int) -> int:
    """Say it; the code."""
    sys.stderr.write(f"gpucloud: {words}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
