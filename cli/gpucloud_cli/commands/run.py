"""`gpucloud run`: a claim for as long as a program runs, and not longer."""

import contextlib
import signal
import time
from pathlib import Path
from typing import Any

import click

from gpucloud_cli import claiming, output
from gpucloud_cli.amounts import DURATION
from gpucloud_cli.api import Api, new_key
from gpucloud_cli.child import Child, NotHere, Signals, command_line
from gpucloud_cli.doors import Asked, asked, body, connects, takes, tenant_of
from gpucloud_cli.failures import Failure, Interrupted, Problem, Unreachable
from gpucloud_cli.resources import CLAIM_FIELDS, Field

NAME = Field("name", help="for people; the command's name unless given")
# A claim that fits is in force within a second; this is for a machine that is busy.
SHORT_WAIT_SECONDS = 30
# The node's word that the program's share is free again.
CONFIRM_SECONDS = 10
# Of one request at the end, beyond what it waits for: a server that hangs must not eat the whole patience.
ANSWER_SECONDS = 5.0
# What comes after the command is the command's own.
WORDS = {"allow_interspersed_args": False}


def join(root: click.Group) -> None:
    """Take part in the command tree."""
    root.add_command(run)


@click.command(context_settings=WORDS, options_metavar="OPTIONS --")
@takes((*CLAIM_FIELDS, NAME))
@click.option("--wait", type=DURATION, help="for quota and GPUs; then exit 5. Unless given: 30s, and for GPUs only")
@click.option(
    "--lease", type=DURATION, default="5m", show_default=True, help="the claim ends so long after we were killed"
)
@click.option("--keep", is_flag=True, help="leave the claim at the end, and without a lease")
@click.option(
    "--release-timeout", type=DURATION, default="60s", show_default=True, help="try so long to release at the end"
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@connects
@asked
def run(asked: Asked, /, command: tuple[str, ...], **given: Any) -> None:
    """Claim, wait, run COMMAND under the claim's limits on this node, release at the end, whatever the end.

    The exit code is the command's own (128 + n where signal n ended it); signals are passed on to it. A client that is
    killed outright cannot release: then the claim's lease ends it.
    """
    wanted = body((*CLAIM_FIELDS, NAME), given)
    # A program's name need not be text, and `/` has none: then the claim is unnamed.
    if name := Path(command[0]).name.encode(errors="replace").decode()[:200].strip():
        wanted.setdefault("name", name)
    wanted.setdefault("when_over_quota", "refuse" if given["wait"] is None else "wait")
    if not given["keep"]:
        wanted["lease_seconds"] = given["lease"]
    with Signals() as signals, asked.api() as api:
        wanted["tenant"] = tenant_of(api, wanted.get("tenant"))
        held = Held(asked, api, signals, keep=given["keep"], release_seconds=given["release_timeout"])
        seconds = SHORT_WAIT_SECONDS if given["wait"] is None else given["wait"]
        code = held.run(wanted, command, wait_seconds=seconds)
    raise click.exceptions.Exit(code)


class Held:
    """One claim, from asking to giving back."""

    def __init__(self, asked: Asked, api: Api, signals: Signals, *, keep: bool, release_seconds: float) -> None:
        self._asked, self._api, self._signals = asked, api, signals
        # While it waits, patience is the wait's own, and Ctrl-C must not wait for a server that hangs.
        self._looking = asked.api(patience_seconds=0, timeout_seconds=ANSWER_SECONDS)
        self._keep, self._release_seconds = keep, release_seconds
        self._lease: claiming.Lease | None = None

    def run(self, wanted: dict[str, Any], command: tuple[str, ...], *, wait_seconds: float) -> int:
        """The program's exit code. Raises Failure where it was never started."""
        claim = self._claimed(wanted)
        kept = False
        try:
            if claim["lease_seconds"] is not None:
                self._lease = claiming.Lease(self._asked.api(patience_seconds=0, timeout_seconds=ANSWER_SECONDS), claim)
                self._lease.start()
            claim = claiming.await_active(self._looking, claim, seconds=wait_seconds, sleep=self._sleep)
            child = self._started(claim, command)
            kept = self._keep
            code = child.wait()
            self._tell_if_ended_by_others(claim["uid"], code)
            return code
        except NotHere as elsewhere:
            kept = self._keep
            raise NotHere(f"{elsewhere}\n{_how_there(claim, command, kept=kept)}") from elsewhere
        finally:
            if self._lease is not None:
                self._lease.stop()
            if kept:
                output.say(f"claim {claim['uid']} is kept: `gpucloud claim release {claim['uid']}` gives it back")
            else:
                self._release(claim["uid"])

    def _claimed(self, wanted: dict[str, Any]) -> claiming.Claim:
        key = new_key()
        try:
            claim: claiming.Claim = self._api.post("claims/", wanted, key=key).body
        except Unreachable as lost:
            ends = "its lease ends it" if wanted.get("lease_seconds") else "look for it with `gpucloud claim list`"
            raise Unreachable(f"{lost}\nIf the claim was made all the same, {ends}.") from lost
        return claim

    def _started(self, claim: claiming.Claim, command: tuple[str, ...]) -> Child:
        place = self._api.get(f"{claiming.path_of(claim['uid'])}env/").body
        line, environment = command_line(place, command)
        self._refuse_if_interrupted()
        where = ", ".join(f"{item['node']}/{item['gpu_index']}" for item in claim["assignments"])
        output.say(
            f"claim {claim['uid']} on {where}: core {claim['core_request']}–{claim['core_limit']} %, "
            f"{claim['memory_mib']} MiB"
        )
        return Child(line, environment, self._signals)

    def _tell_if_ended_by_others(self, uid: str, code: int) -> None:
        """A program that a signal has ended may have lost its claim; who reads the log wants to know."""
        if code not in (128 + signal.SIGTERM, 128 + signal.SIGKILL) or (self._lease and self._lease.lost):
            return
        with contextlib.suppress(Failure):
            state = self._looking.get(claiming.path_of(uid)).body["state"]
            if state in ("releasing", "released"):
                output.say(f"claim {uid} was ended: somebody released it, or its time limit or its lease passed")

    def _sleep(self, seconds: float) -> None:
        self._refuse_if_interrupted()
        self._signals.wait(seconds)
        self._refuse_if_interrupted()

    def _refuse_if_interrupted(self) -> None:
        if self._signals.caught:
            raise Interrupted(self._signals.caught[0])

    def _release(self, uid: str) -> None:
        """Until the server has it, or patience ends, or somebody interrupts for the second time."""
        deadline = time.monotonic() + self._release_seconds
        caught_before, told, pause = len(self._signals.caught), False, 0.5
        while True:
            words = self._try_to_release(uid)
            if words is None:
                return
            given_up = time.monotonic() + pause > deadline or len(self._signals.caught) > caught_before
            if given_up:
                output.say(f"claim {uid} could not be released: {words}\n{self._what_then(uid)}")
                return
            if not told:
                output.say(f"claim {uid} cannot be released yet, trying for {self._release_seconds:.0f} s: {words}")
            told = True
            self._signals.wait(pause)
            pause = min(2 * pause, 5.0)

    def _try_to_release(self, uid: str) -> str | None:
        """Why it did not go, if another try may help; None once nothing is left to do."""
        try:
            with self._asked.api(patience_seconds=0, timeout_seconds=CONFIRM_SECONDS + ANSWER_SECONDS) as api:
                state = claiming.released(api, uid, wait_seconds=CONFIRM_SECONDS)
        except Problem as problem:
            output.say(f"claim {uid} was not released: {problem}\n{self._what_then(uid)}")
            return None
        except Failure as failure:
            return str(failure)
        if state != "released":
            output.say(f"claim {uid} is {state}: its node gives it back when the last process has ended")
        return None

    def _what_then(self, uid: str) -> str:
        by_hand = f"`gpucloud claim release {uid}` does it by hand"
        return by_hand if self._keep else f"{by_hand}; else its lease ends it."


def _how_there(claim: claiming.Claim, command: tuple[str, ...], *, kept: bool) -> str:
    node = claim["assignments"][0]["node"]
    if kept:
        return f"Run there: gpucloud claim exec {claim['uid']} -- {' '.join(command)}"
    return f"Run `gpucloud run` on {node}, or use --keep here and `gpucloud claim exec UID -- COMMAND` there."
