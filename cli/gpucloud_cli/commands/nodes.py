"""`node add|enrol|cordon|uncordon|drain|lift-fence|forget|drift|repair`, and `gpu clear`."""

from typing import Any

import click

from gpucloud_cli import output
from gpucloud_cli.doors import Asked, answers, asked
from gpucloud_cli.failures import Failure
from gpucloud_cli.resources import BY_NAME
from gpucloud_cli.verbs import path_of

NODE, GPU = BY_NAME["node"], BY_NAME["gpu"]


def join(root: click.Group) -> None:
    """Take part in the command tree."""
    group = root.commands["node"]
    assert isinstance(group, click.Group)
    for command in (add, enrol, cordon, uncordon, drain, lift_fence, forget, drift, repair):
        group.add_command(command)
    gpus = root.commands["gpu"]
    assert isinstance(gpus, click.Group)
    gpus.add_command(clear)


@click.command()
@click.argument("name")
@click.option("--pool", default="default", show_default=True, help="a pool's name")
@answers
@asked
def add(asked: Asked, name: str, pool: str) -> None:
    """Make a node; prints the command to copy to the machine, with its one-time enrolment token."""
    with asked.api() as api:
        _enrolment(asked, api.post("nodes/", {"name": name, "pool": pool}).body)


@click.command()
@click.argument("name")
@answers
@asked
def enrol(asked: Asked, name: str) -> None:
    """Make a new one-time token; the agent that enrols with it replaces the present one."""
    with asked.api() as api:
        _enrolment(asked, api.post(f"{path_of(NODE, None, name)}enrolment/", {}).body)


@click.command()
@click.argument("name")
@answers
@asked
def cordon(asked: Asked, name: str) -> None:
    """Let it take no new claims; those on it stay."""
    _cordon(asked, name, cordoned=True)


@click.command()
@click.argument("name")
@answers
@asked
def uncordon(asked: Asked, name: str) -> None:
    """Let it take new claims again."""
    _cordon(asked, name, cordoned=False)


@click.command()
@click.argument("name")
@click.option("--grace-seconds", type=click.IntRange(0, 604_800), help="what claims have after they are told")
@click.option("--dry-run", is_flag=True, help="say who would move and where to, and change nothing")
@answers
@asked
def drain(asked: Asked, name: str, grace_seconds: int | None, dry_run: bool) -> None:
    """Let it take no new claims, and send those on it back to the queue; `uncordon` ends that."""
    with asked.api() as api:
        path, body = f"{path_of(NODE, None, name)}drain/", {"grace_seconds": grace_seconds}
        asked.show(api.post(path, body, dry_run=dry_run or None).body)


@click.command()
@click.argument("name")
@answers
@asked
def lift_fence(asked: Asked, name: str) -> None:
    """Let it take new claims again after it was fenced for what ran on it."""
    with asked.api() as api:
        asked.show(api.post(f"{path_of(NODE, None, name)}lift-fence/", {}).body)


@click.command()
@click.argument("uuid")
@answers
@asked
def clear(asked: Asked, uuid: str) -> None:
    """Say that it is cured of an XID error, after a reset."""
    with asked.api() as api:
        asked.show(api.post(f"{path_of(GPU, None, uuid)}clear/", {}).body)


@click.command()
@click.argument("name")
@answers
@asked
def forget(asked: Asked, name: str) -> None:
    """Release what a lost node carried, and shut its agent out."""
    with asked.api() as api:
        asked.show(api.post(f"{path_of(NODE, None, name)}forget/", {}).body)


@click.command()
@click.argument("name")
@answers
@asked
def drift(asked: Asked, name: str) -> None:
    """Show what should be in force there, what is, and what somebody changed on the machine."""
    with asked.api() as api:
        asked.show(api.get(f"{path_of(NODE, None, name)}drift/").body)


@click.command()
@click.argument("name")
@answers
@asked
def repair(asked: Asked, name: str) -> None:
    """Have the agent put right what somebody changed on the machine."""
    with asked.api() as api:
        asked.show(api.post(f"{path_of(NODE, None, name)}repair/", {}).body)


def _cordon(asked: Asked, name: str, *, cordoned: bool) -> None:
    with asked.api() as api:
        asked.show(api.patch(path_of(NODE, None, name), {"cordoned": cordoned}).body)


def _enrolment(asked: Asked, node: dict[str, Any]) -> None:
    if node["enrolment_token"] is None:
        # The answer was lost and the second one is without secrets.
        raise Failure(
            f"Node {node['name']} is made, but its token was lost on the way: `gpucloud node enrol` makes another."
        )
    if asked.json:
        output.as_json(node)
        return
    output.say(f"node {node['name']} awaits its agent; run this there as root, within 24 hours:")
    click.echo(node["command"])
