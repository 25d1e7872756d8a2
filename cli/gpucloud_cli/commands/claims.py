"""`claim create|resize|release|renew|env|exec`."""

import time
from typing import Any

import click

from gpucloud_cli import claiming, output
from gpucloud_cli.amounts import DURATION, SIZE
from gpucloud_cli.api import Api
from gpucloud_cli.child import become
from gpucloud_cli.doors import Asked, answers, asked, body, connects, takes, tenant_of
from gpucloud_cli.failures import Failure, Usage, WaitRanOut, exit_code
from gpucloud_cli.resources import BY_NAME, CLAIM_FIELDS, Field
from gpucloud_cli.verbs import path_of

CLAIM = BY_NAME["claim"]
RESIZED = (
    *(field for field in CLAIM_FIELDS if field.name in {"core_request", "core_limit", "class", "weight"}),
    Field("memory_mib", SIZE, "device memory on each GPU, like 8GiB", flag="--memory"),
)
LEASE = Field("lease_seconds", DURATION, "released unless renewed in time (`claim renew`)", flag="--lease")
# What one request may wait for; a longer wait looks again.
LONGEST_WAIT_SECONDS = 300


def join(root: click.Group) -> None:
    """Take part in the command tree."""
    group = root.commands["claim"]
    assert isinstance(group, click.Group)
    for command in (create, wait_for, resize, release, renew, env, execute):
        group.add_command(command)


WAIT = click.option("--wait", type=DURATION, help="until it is in force; exit 5 when the wait runs out")
DRY_RUN = click.option("--dry-run", is_flag=True, help="say what would happen; change nothing")


@click.command()
@takes((Field("name", help="for people"), *CLAIM_FIELDS, LEASE))
@WAIT
@DRY_RUN
@click.option("--uid", "only_uid", is_flag=True, help="print its uid only")
@answers
@asked
def create(asked: Asked, /, wait: int | None, dry_run: bool, only_uid: bool, **given: Any) -> None:
    """Ask for pieces of GPUs; it stays until it is released (`run` releases by itself)."""
    if dry_run and only_uid:
        raise Usage("--dry-run makes no claim, so there is no uid to print.")
    wanted = body((Field("name"), *CLAIM_FIELDS, LEASE), given)
    with asked.api() as api:
        wanted["tenant"] = tenant_of(api, wanted.get("tenant"))
        claim = api.post("claims/", wanted, dry_run=True if dry_run else None).body
        if wait is not None and not dry_run:
            output.say(f"claim {claim['uid']} is made; waiting until it is in force")
            claim = claiming.await_active(api, claim, seconds=wait)
    if only_uid:
        click.echo(claim["uid"])
    else:
        asked.show(claim)


@click.command("wait")
@click.argument("uid")
@click.option("--for", "seconds", type=DURATION, default="10m", show_default=True, help="then exit 5; the claim stays")
@answers
@asked
def wait_for(asked: Asked, /, uid: str, seconds: int) -> None:
    """Wait until a claim's limits are in force, saying meanwhile why it waits."""
    with asked.api() as api:
        claim = api.get(path_of(CLAIM, None, uid)).body
        asked.show(claiming.await_active(api, claim, seconds=seconds))


@click.command()
@click.argument("uid")
@takes(RESIZED)
@WAIT
@DRY_RUN
@click.option("--if-version", type=click.INT, help="refuse (exit 3) unless it is still at this version")
@answers
@asked
def resize(asked: Asked, /, uid: str, wait: int | None, dry_run: bool, if_version: int | None, **given: Any) -> None:
    """Change its limits, live: same process, no restart."""
    wanted = body(RESIZED, given)
    if not wanted:
        raise Usage("Nothing to change was given: see --help.")
    etag = None if if_version is None else f'"{if_version}"'
    with asked.api() as api:
        claim = api.patch(path_of(CLAIM, None, uid), wanted, etag=etag, dry_run=True if dry_run else None).body
        if wait is not None and not dry_run:
            claim = claiming.await_active(api, claim, seconds=wait)
        asked.show(claim)


@click.command()
@click.argument("uids", metavar="UID...", nargs=-1, required=True)
@click.option("--wait", type=DURATION, help="for each, until its node has confirmed it; then exit 5")
@connects
@asked
def release(asked: Asked, /, uids: tuple[str, ...], wait: int | None) -> None:
    """Give claims back; may be repeated. What goes wrong with one keeps no other."""
    codes = []
    with asked.api(timeout_seconds=LONGEST_WAIT_SECONDS + 30.0) as api:
        for uid in uids:
            try:
                _release(api, uid, wait)
            except Failure as failure:
                output.say(f"claim {uid} is not released: {failure}")
                codes.append(exit_code(failure))
    if codes:
        raise click.exceptions.Exit(codes[0])


def _release(api: Api, uid: str, wait: int | None) -> None:
    deadline = time.monotonic() + (wait or 0)
    while True:
        left = max(deadline - time.monotonic(), 0)
        state = claiming.released(api, uid, wait_seconds=min(round(left), LONGEST_WAIT_SECONDS))
        if state == "released" or wait is None:
            output.say(f"claim {uid} is {state}")
            return
        if left <= LONGEST_WAIT_SECONDS:
            raise WaitRanOut(f"it is {state} after {wait} s, and its node gives it back when it answers")


@click.command()
@click.argument("uid")
@answers
@asked
def renew(asked: Asked, /, uid: str) -> None:
    """Let its lease run anew from now."""
    with asked.api() as api:
        asked.show(api.post(f"{path_of(CLAIM, None, uid)}renew/", {}).body)


@click.command()
@click.argument("uid")
@answers
@asked
def env(asked: Asked, /, uid: str) -> None:
    """Show what a process needs to run under it; its secret is among it."""
    with asked.api() as api:
        asked.show(api.get(f"{path_of(CLAIM, None, uid)}env/").body)


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.argument("uid")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@connects
@asked
def execute(asked: Asked, /, uid: str, command: tuple[str, ...]) -> None:
    """Become COMMAND under a claim that is there already, on its node: `claim exec UID -- python train.py`."""
    with asked.api() as api:
        place = api.get(f"{path_of(CLAIM, None, uid)}env/").body
    # `--` after the uid is the habit; click takes it away only where it comes before every argument.
    become(place, command[1:] if command[0] == "--" else command)
