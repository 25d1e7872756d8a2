"""`gpucloud run`: a claim that lives as long as a program."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import click

from gpucloud_cli import claiming, launch, output
from gpucloud_cli.amounts import DURATION
from gpucloud_cli.api import Api, new_key
from gpucloud_cli.child import Child, NotHere, Signals, command_line
from gpucloud_cli.failures import Exit, Failure, Interrupted, Problem, Unreachable, Usage
from gpucloud_cli.fields import CLAIM_FIELDS, Field
from gpucloud_cli.group_run import AGAIN_SECONDS, GroupPrograms, GroupThread
from gpucloud_cli.options import Invocation, body, connection_options, field_options, pass_invocation, tenant_of
from gpucloud_cli.remote_run import RemoteProgram
from gpucloud_cli.watching import ClaimWatch

NAME = Field("name", help="a display name; default: the command's name")
# A claim that fits is in force within a second; this is for a busy machine.
SHORT_WAIT_SECONDS = 30
# Time for the node to confirm that the program's share is free again.
CONFIRM_SECONDS = 10
# Time of one request at the end, beyond its wait: a server that hangs must not use up the whole patience.
ANSWER_SECONDS = 5.0
# The label that each node has by itself.
NODE_NAME = "gpucloud.io/node"
# Arguments after the command belong to the command.
WORDS = {"allow_interspersed_args": False}


@click.command(context_settings=WORDS, options_metavar="OPTIONS --")
@field_options((*CLAIM_FIELDS, NAME))
@click.option("--node", help='place it on this node only, like "$(hostname)" where each machine has its name as node')
@click.option(
    "--remote", "is_remote", is_flag=True, help="run it on this machine, with the claim's GPUs in another one"
)
@click.option("--wait", type=DURATION, help="wait this long for quota and GPUs, then exit 5; default: 30s, for GPUs")
@click.option(
    "--lease",
    type=DURATION,
    default="5m",
    show_default=True,
    help="end of the claim after a kill of this client",
)
@click.option("--keep", is_flag=True, help="keep the claim at the end, without a lease")
@click.option(
    "--release-timeout", type=DURATION, default="60s", show_default=True, help="retry the release for this long"
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@connection_options
@pass_invocation
def run(invocation: Invocation, /, command: tuple[str, ...], **given: Any) -> None:
    """Run COMMAND on this node under a new claim, and release the claim at the end.

    The claim is released however the command ends. The exit code is the command's own (128 + n if signal n ended it);
    signals are passed on to it. If the claim ends before the command, the cause is printed, and the exit code is 76.
    A client that is killed outright cannot release: then the claim's lease ends it.

    With --group-most, COMMAND runs under each member of the group on this node, and the group ends with this claim. A
    COMMAND that fails after a member has left is started again.

    With --remote, COMMAND runs on this machine, which needs no GPU: it uses the claim's over the network
    (docs/remote.md), where operators allow it. `gpucloud claim exec --remote` does so under a claim that exists.

    Example: gpucloud run --core 30 --memory 8GiB --wait 10m -- python train.py
    Example: gpucloud run --remote --core 30 --memory 8GiB -- python predict.py
    Example: gpucloud run --node "$(hostname)" --core 30 --memory 8GiB -- python train.py
    """
    wanted = body((*CLAIM_FIELDS, NAME), given)
    # A program's name may not be text, and `/` has none: then the claim is unnamed.
    if name := Path(command[0]).name.encode(errors="replace").decode()[:200].strip():
        wanted.setdefault("name", name)
    if given["node"] is not None:
        wanted["node_selector"] = {**wanted.get("node_selector", {}), NODE_NAME: given["node"]}
    if given["is_remote"]:
        if wanted.get("group_most") is not None:
            raise Usage("--remote runs one COMMAND: a group's members run on their nodes.")
        wanted["remote"] = "require"
    wanted.setdefault("when_over_quota", "refuse" if given["wait"] is None else "wait")
    if not given["keep"]:
        wanted["lease_seconds"] = given["lease"]
    with Signals() as signals, invocation.api() as api:
        wanted["tenant"] = tenant_of(api, wanted.get("tenant"))
        held = ClaimedRun(invocation, api, signals, keep=given["keep"], release_seconds=given["release_timeout"])
        held.is_remote = given["is_remote"]
        seconds = SHORT_WAIT_SECONDS if given["wait"] is None else given["wait"]
        code = held.run(wanted, command, wait_seconds=seconds)
    raise click.exceptions.Exit(code)


class ClaimedRun:
    """One claim, from its creation to its release."""

    def __init__(
        self, invocation: Invocation, api: Api, signals: Signals, *, keep: bool, release_seconds: float
    ) -> None:
        self._invocation, self._api, self._signals = invocation, api, signals
        # During the wait, retries use the wait's own patience, and Ctrl-C must not wait for a server that hangs.
        self._looking = invocation.api(patience_seconds=0, timeout_seconds=ANSWER_SECONDS)
        self._keep, self._release_seconds = keep, release_seconds
        self._lease: claiming.Lease | None = None
        self._watch: ClaimWatch | None = None
        self._others: GroupThread | None = None
        # True: the program runs on this machine, and the claim's GPUs are in another one.
        self.is_remote = False
        self._remote: RemoteProgram | None = None

    def run(self, wanted: dict[str, Any], command: tuple[str, ...], *, wait_seconds: float) -> int:
        """Return the program's exit code.

        Raises Failure if it was never started.
        """
        claim = self._claim(wanted)
        kept = False
        try:
            if claim["lease_seconds"] is not None:
                self._lease = claiming.Lease(
                    self._invocation.api(patience_seconds=0, timeout_seconds=ANSWER_SECONDS), claim
                )
                self._lease.start()
            claim = claiming.await_active(self._looking, claim, seconds=wait_seconds, sleep=self._sleep)
            child = self._start(claim, command)
            kept = self._keep
            self._watch = ClaimWatch(self._invocation.api(patience_seconds=0, timeout_seconds=ANSWER_SECONDS), claim)
            self._watch.start()
            if claim["group_most"] is not None:
                self._others = self._run_others(claim, command)
            code = child.wait()
            while self._is_to_start_again(code):
                code = self._start(claim, command).wait()
            return self._code_of(code)
        except NotHere as elsewhere:
            kept = self._keep
            raise NotHere(f"{elsewhere}\n{_how_there(claim, command, kept=kept)}") from elsewhere
        finally:
            if self._lease is not None:
                self._lease.stop()
            if self._watch is not None:
                self._watch.stop()
            if self._others is not None:
                self._others.stop()
            if self._remote is not None:
                self._remote.stop()
            if kept:
                output.say(f"claim {claim['uid']} is kept: `gpucloud claim release {claim['uid']}` gives it back")
            else:
                self._release(claim["uid"])

    def _claim(self, wanted: dict[str, Any]) -> claiming.Claim:
        key = new_key()
        try:
            claim: claiming.Claim = self._api.post("claims/", wanted, key=key).body
        except Unreachable as lost:
            ends = "its lease ends it" if wanted.get("lease_seconds") else "look for it with `gpucloud claim list`"
            raise Unreachable(f"{lost}\nIf the claim was made all the same, {ends}.") from lost
        return claim

    def _start(self, claim: claiming.Claim, command: tuple[str, ...]) -> Child:
        if self.is_remote:
            self._remote = RemoteProgram(self._api, claim)
            start = partial(self._remote.start, command)
        else:
            place = self._api.get(f"{claiming.path_of(claim['uid'])}env/").body
            start = partial(Child, *command_line(place, command))
        self._refuse_if_interrupted()
        where = ", ".join(f"{item['node']}/{item['gpu_index']}" for item in claim["assignments"])
        output.say(
            f"claim {claim['uid']} on {where}: core {claim['core_request']}–{claim['core_limit']} %, "
            f"{claim['memory_mib']} MiB"
        )
        return start(self._signals)

    def _run_others(self, claim: claiming.Claim, command: tuple[str, ...]) -> GroupThread:
        api = self._invocation.api(patience_seconds=0, timeout_seconds=ANSWER_SECONDS)
        thread = GroupThread(GroupPrograms(api, claim["uid"], command, without={claim["uid"]}))
        thread.start()
        return thread

    def _is_to_start_again(self, code: int) -> bool:
        """Return True if the program has failed as one of a group from which a member has left; wait before."""
        # Who ends it by a signal means it; and 125 to 127 say that it cannot be started.
        if self._others is None or self._signals.ending or code == 0 or code >= launch.EXIT_FAILED:
            return False
        deadline = time.monotonic() + AGAIN_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            self._sleep(left)
        if self._is_claim_over() or not self._others.programs.has_lost_a_member():
            return False
        output.say(f"the program has ended ({code}) after a member left, and is started again; Ctrl-C ends the group")
        return True

    def _code_of(self, code: int) -> int:
        """Return the program's exit code, or CLAIM_ENDED if its claim ended or moved first, whatever it made of it."""
        if self._watch is not None:
            self._watch.stop()
        return Exit.CLAIM_ENDED if self._is_claim_over() else code

    def _is_claim_over(self) -> bool:
        """Return True if the claim has ended, or moves to another node."""
        if self._watch is None:
            return False
        self._watch.read_claim()
        return self._watch.cause is not None or self._watch.moves_to is not None

    def _sleep(self, seconds: float) -> None:
        self._refuse_if_interrupted()
        self._signals.wait(seconds)
        self._refuse_if_interrupted()

    def _refuse_if_interrupted(self) -> None:
        if self._signals.caught:
            raise Interrupted(self._signals.caught[0])

    def _release(self, uid: str) -> None:
        """Release until the server has confirmed, patience ends, or a second interrupt comes."""
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
        """Release once; return why it failed if a retry may help, None if nothing is left to do."""
        try:
            with self._invocation.api(patience_seconds=0, timeout_seconds=CONFIRM_SECONDS + ANSWER_SECONDS) as api:
                state = claiming.release(api, uid, wait_seconds=CONFIRM_SECONDS)
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
    return (
        f"Run `gpucloud run` on {node}, or here with `--node NAME`, the name that this machine has as a node; "
        "or use --keep here and `gpucloud claim exec UID -- COMMAND` there."
    )


COMMANDS = {"": (run,)}
