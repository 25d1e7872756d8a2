"""The start of a program of this machine on a claim's GPUs in another one."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from gpucloud_cli import claiming, launch, output, remote_client
from gpucloud_cli.api import Api
from gpucloud_cli.child import Child, Signals
from gpucloud_cli.failures import Exit, Failure
from gpucloud_cli.options import Invocation
from gpucloud_cli.remote_client import RemoteShare
from gpucloud_cli.watching import ClaimWatch

MIB = 1 << 20
# Time of one request while the program runs.
ANSWER_SECONDS = 5.0


class CannotStart(Failure):
    """The program cannot be started; the exit code is a shell's."""

    def __init__(self, words: str, code: int) -> None:
        super().__init__(words)
        self.exit = code


class RemoteProgram:
    """The claim's port on this machine, and the program that uses it."""

    def __init__(self, api: Api, claim: Mapping[str, Any]) -> None:
        """Get a ticket and open the port. Raises Failure."""
        key, digest = remote_client.new_key()
        place = api.post(f"{claiming.path_of(claim['uid'])}remote/", {"key_sha256": digest}).body
        self._directory = remote_client.find_library(place["component"], os.environ)
        self._component, self._claim = place["component"], claim
        if caution := remote_client.COMPONENTS[place["component"]].caution:
            output.say(caution)
        self._share = RemoteShare(place, key, output.say)
        self._share.start()

    def start(self, command: Sequence[str], signals: Signals) -> Child:
        """Start the program. Raises CannotStart."""
        environment = remote_client.environment_of(
            self._component, self._directory, self._share.port, self._claim["uid"], os.environ
        )
        try:
            return Child(list(command), environment, signals)
        except FileNotFoundError as error:
            raise CannotStart(f"{command[0]}: command not found", launch.EXIT_NOT_FOUND) from error
        except OSError as error:
            raise CannotStart(f"{command[0]}: {error.strerror}", launch.EXIT_NOT_EXECUTABLE) from error

    def stop(self) -> None:
        """Close the port, and say what was moved."""
        self._share.stop()
        moved = self._share.totals
        trip = f", {moved.trip_seconds * 1000:.1f} ms there and back" if moved.trip_seconds is not None else ""
        output.say(
            f"remote: {moved.sent_bytes / MIB:.1f} MiB sent, {moved.received_bytes / MIB:.1f} MiB received, "
            f"{moved.turns} round trips{trip}"
        )


def run_attached(invocation: Invocation, api: Api, claim: Mapping[str, Any], command: Sequence[str]) -> int:
    """Run a program of this machine under a claim that exists, and return its exit code; the claim stays.

    The claim's lease, if it has one, is renewed meanwhile. Raises Failure.
    """
    with ExitStack() as ends, Signals() as signals:
        program = RemoteProgram(api, claim)
        ends.callback(program.stop)
        child = program.start(command, signals)
        found = dict(claim)
        if found["lease_seconds"] is not None:
            lease = claiming.Lease(invocation.api(patience_seconds=0, timeout_seconds=ANSWER_SECONDS), found)
            lease.start()
            ends.callback(lease.stop)
        watch = ClaimWatch(invocation.api(patience_seconds=0, timeout_seconds=ANSWER_SECONDS), found)
        watch.start()
        ends.callback(watch.stop)
        code = child.wait()
        watch.read_claim()
        return Exit.CLAIM_ENDED if watch.cause is not None else code
