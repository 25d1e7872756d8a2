"""`claim create|resize|suspend|resume|move|release|exec`."""

import time
from dataclasses import replace
from typing import Any

import click

from gpucloud_cli import claiming, output
from gpucloud_cli.addressing import find_claim
from gpucloud_cli.amounts import DURATION, duration_text
from gpucloud_cli.api import Api
from gpucloud_cli.child import become
from gpucloud_cli.failures import Failure, Usage, WaitRanOut, exit_code
from gpucloud_cli.fields import body_fields
from gpucloud_cli.options import (
    Invocation,
    body,
    connection_options,
    field_options,
    output_options,
    pass_invocation,
    tenant_of,
)
from gpucloud_cli.remote_run import run_attached

CREATED = tuple(replace(field, required=False) for field in body_fields("POST claims/", "claim"))
RESIZED = body_fields("PATCH claims/{}/", "claim")
# The server's limit on one request's wait; a longer wait polls again.
LONGEST_WAIT_SECONDS = 300


CLAIM_ARGUMENT = click.argument("name", metavar="CLAIM")
WAIT = click.option("--wait", type=DURATION, help="wait for this long until its limits are applied; then exit 5")
DRY_RUN = click.option("--dry-run", is_flag=True, help="show the effect; change nothing")


@click.command()
@field_options(CREATED)
@WAIT
@DRY_RUN
@click.option("--uid", "only_uid", is_flag=True, help="print the uid only")
@output_options
@pass_invocation
def create(invocation: Invocation, /, wait: int | None, dry_run: bool, only_uid: bool, **given: Any) -> None:
    """Create a claim for shares of GPUs; it exists until it is released (`run` releases its own).

    Example: gpucloud claim create --core 30 --memory 8GiB --wait 10m
    """
    if dry_run and only_uid:
        raise Usage("--dry-run makes no claim, so there is no uid to print.")
    wanted = body(CREATED, given)
    with invocation.api() as api:
        wanted["tenant"] = tenant_of(api, wanted.get("tenant"))
        claim = api.post("claims/", wanted, dry_run=True if dry_run else None).body
        if wait is not None and not dry_run:
            output.say(f"claim {claim['uid']} is created; waiting until its limits are applied")
            claim = claiming.await_active(api, claim, seconds=wait)
    if only_uid:
        click.echo(claim["uid"])
    else:
        invocation.show(claim)


@click.command("wait")
@CLAIM_ARGUMENT
@click.option(
    "--for",
    "seconds",
    type=DURATION,
    default="10m",
    show_default=True,
    help="wait this long; then exit 5",
)
@output_options
@pass_invocation
def wait_for(invocation: Invocation, /, name: str, seconds: int) -> None:
    """Wait until a claim's limits are applied, and print meanwhile why it waits.

    Example: gpucloud claim wait train --for 10m
    """
    with invocation.api() as api:
        claim = api.get(_path(api, name)).body
        invocation.show(claiming.await_active(api, claim, seconds=seconds))


@click.command()
@CLAIM_ARGUMENT
@field_options(RESIZED)
@WAIT
@DRY_RUN
@click.option("--if-version", type=click.INT, help="fail (exit 3) unless it is still at this version")
@output_options
@pass_invocation
def resize(
    invocation: Invocation, /, name: str, wait: int | None, dry_run: bool, if_version: int | None, **given: Any
) -> None:
    """Resize a claim's limits live: same process, no restart.

    Example: gpucloud claim resize train --core 50
    """
    wanted = body(RESIZED, given)
    if not wanted:
        raise Usage("Nothing to change was given: see --help.")
    etag = None if if_version is None else f'"{if_version}"'
    with invocation.api() as api:
        claim = api.patch(_path(api, name), wanted, etag=etag, dry_run=True if dry_run else None).body
        if wait is not None and not dry_run:
            claim = claiming.await_active(api, claim, seconds=wait)
        invocation.show(claim)


@click.command()
@CLAIM_ARGUMENT
@click.option("--wait", type=DURATION, help="wait for this long until its GPUs are free; then exit 5")
@DRY_RUN
@output_options
@pass_invocation
def suspend(invocation: Invocation, /, name: str, wait: int | None, dry_run: bool) -> None:
    """Suspend a claim: its programs stop, their GPU memory moves to the node's memory, and its GPUs are free.

    Example: gpucloud claim suspend train --wait 60s
    """
    _order(invocation, name, "suspend", wait, dry_run=dry_run, states=("suspended", "active"))


@click.command()
@CLAIM_ARGUMENT
@click.option("--wait", type=DURATION, help="wait for this long until its programs run again; then exit 5")
@DRY_RUN
@output_options
@pass_invocation
def resume(invocation: Invocation, /, name: str, wait: int | None, dry_run: bool) -> None:
    """Resume a suspended claim: it waits in the queue for GPUs of its node, and its programs go on.

    Example: gpucloud claim resume train --wait 10m
    """
    _order(invocation, name, "resume", wait, dry_run=dry_run, states=("active", "suspended"))


@click.command()
@CLAIM_ARGUMENT
@click.option("--gpu", "gpus", multiple=True, metavar="UUID", help="a GPU on which it is to be; repeat for each")
@click.option("--node", metavar="NAME", help="to another node, by its name; its running programs are carried there")
@click.option("--anywhere", is_flag=True, help="to another node, which the placement policy chooses")
@click.option("--restart", is_flag=True, help="its programs end, and you start them again on the other node")
@click.option(
    "--end", type=DURATION, help="longest time for its programs to save their state for a restart; default: 60s"
)
@click.option("--wait", type=DURATION, help="wait for this long until its programs run there; then exit 5")
@DRY_RUN
@output_options
@pass_invocation
def move(invocation: Invocation, /, name: str, wait: int | None, dry_run: bool, **place: Any) -> None:
    """Move a claim to other GPUs of its node or to another node, where its programs go on.

    For another node the claim must be movable, and both nodes must carry running programs. With --restart its programs
    get SIGUSR1 if they handle it, and time to save their state; then they end, and you start them on the other node
    with `gpucloud claim exec`.

    Example: gpucloud claim move train --node n2 --wait 3m
    """
    with invocation.api() as api:
        names = {
            "gpus": list(place["gpus"]),
            "node": place["node"],
            "anywhere": place["anywhere"],
            "restart": place["restart"],
            "end_seconds": place["end"],
        }
        wanted = {key: value for key, value in names.items() if value}
        claim = api.post(f"{_path(api, name)}move/", wanted, dry_run=True if dry_run else None).body
        if wait is not None and not dry_run:
            claim = claiming.await_active(api, claim, seconds=wait)
            if any(reason["code"] in ("move-refused", "carry-refused") for reason in claim["reasons"]):
                raise claiming.Refused(f"Claim {claim['uid']} stays where it was: {claiming.why(claim)}.")
        invocation.show(claim)


def _order(
    invocation: Invocation, name: str, order: str, wait: int | None, *, dry_run: bool, states: tuple[str, str]
) -> None:
    """Give the order and show the claim. `states`: the claim's state once it is done, and once it is refused."""
    with invocation.api() as api:
        claim = api.post(f"{_path(api, name)}{order}/", {}, dry_run=True if dry_run else None).body
        if wait is not None and not dry_run:
            claim = claiming.await_active(api, claim, seconds=wait, until=states[0], refused=states[1])
        invocation.show(claim)


@click.command()
@click.argument("names", metavar="CLAIM...", nargs=-1, required=True)
@click.option("--wait", type=DURATION, help="wait for this long for each node to confirm; then exit 5")
@connection_options
@pass_invocation
def release(invocation: Invocation, /, names: tuple[str, ...], wait: int | None) -> None:
    """Release claims by name or UID; may be repeated. A failure of one does not stop the others.

    Example: gpucloud claim release train --wait 60s
    """
    codes = []
    with invocation.api(timeout_seconds=LONGEST_WAIT_SECONDS + 30.0) as api:
        for name in names:
            try:
                _release(api, find_claim(api, name), wait)
            except Failure as failure:
                output.say(f"claim {name} is not released: {failure}")
                codes.append(exit_code(failure))
    if codes:
        raise click.exceptions.Exit(codes[0])


def _path(api: Api, name: str) -> str:
    """Return the path of the claim with this name or UID."""
    return claiming.path_of(find_claim(api, name))


def _release(api: Api, uid: str, wait: int | None) -> None:
    deadline = time.monotonic() + (wait or 0)
    while True:
        left = max(deadline - time.monotonic(), 0)
        state = claiming.release(api, uid, wait_seconds=min(round(left), LONGEST_WAIT_SECONDS))
        if state == "released" or wait is None:
            output.say(f"claim {uid} is {state}")
            return
        if left <= LONGEST_WAIT_SECONDS:
            raise WaitRanOut(f"it is {state} after {duration_text(wait)}, and its node gives it back when it answers")


@click.command("exec", context_settings={"allow_interspersed_args": False})
@CLAIM_ARGUMENT
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--remote", "is_remote", is_flag=True, help="run it on this machine, which is not the claim's node")
@connection_options
@pass_invocation
def execute(invocation: Invocation, /, name: str, command: tuple[str, ...], is_remote: bool) -> None:
    """Run COMMAND under an existing claim, on its node.

    With --remote, COMMAND runs on this machine, which needs no GPU: it uses the claim's over the network
    (docs/remote.md). The claim stays, so several programs can use it one after the other.

    Example: gpucloud claim exec train -- python train.py
    Example: gpucloud claim exec --remote tests -- pytest tests/gpu
    """
    # `--` after the claim is common; click removes it only before the first argument.
    command = command[1:] if command[0] == "--" else command
    with invocation.api() as api:
        if is_remote:
            raise click.exceptions.Exit(run_attached(invocation, api, api.get(_path(api, name)).body, command))
        place = api.get(f"{_path(api, name)}env/").body
    become(place, command)


COMMANDS = {"claim": (create, wait_for, resize, suspend, resume, move, release, execute)}
