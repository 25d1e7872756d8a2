"""`node add|enrol|cordon|uncordon|drain|lift-fence|forget|drift|repair`, and `gpu cordon|uncordon|clear`."""

from typing import Any

import click

from gpucloud_cli import output
from gpucloud_cli.amounts import DURATION
from gpucloud_cli.api import Api
from gpucloud_cli.failures import Failure, Usage
from gpucloud_cli.options import Invocation, output_options, pass_invocation
from gpucloud_cli.resources import BY_NAME
from gpucloud_cli.verbs import path_of

NODE, GPU = BY_NAME["node"], BY_NAME["gpu"]


def join(root: click.Group) -> None:
    """Add the commands to the tree."""
    group = root.commands["node"]
    assert isinstance(group, click.Group)
    for command in (add, enrol, cordon, uncordon, drain, lift_fence, forget, drift, repair):
        group.add_command(command)
    gpus = root.commands["gpu"]
    assert isinstance(gpus, click.Group)
    for command in (cordon_gpu, uncordon_gpu, clear):
        gpus.add_command(command)


@click.command()
@click.argument("name")
@click.option("--pool", default="default", show_default=True, help="a pool's name")
@output_options
@pass_invocation
def add(invocation: Invocation, name: str, pool: str) -> None:
    """Add a node; print the command for its machine, with the node's one-time enrolment token.

    Example: gpucloud node add gpu-7 --pool default
    """
    with invocation.api() as api:
        _enrolment(invocation, api.post("nodes/", {"name": name, "pool": pool}).body)


@click.command()
@click.argument("name")
@output_options
@pass_invocation
def enrol(invocation: Invocation, name: str) -> None:
    """Enrol a node again: print a new one-time token; the agent that uses it replaces the current one.

    Example: gpucloud node enrol gpu-7
    """
    with invocation.api() as api:
        _enrolment(invocation, api.post(f"{path_of(NODE, None, name)}enrolment/", {}).body)


@click.command()
@click.argument("name")
@output_options
@pass_invocation
def cordon(invocation: Invocation, name: str) -> None:
    """Cordon a node: it takes no new claims, and running claims stay.

    Example: gpucloud node cordon gpu-7
    """
    _cordon(invocation, name, cordoned=True)


@click.command()
@click.argument("name")
@output_options
@pass_invocation
def uncordon(invocation: Invocation, name: str) -> None:
    """Uncordon a node: it takes new claims again.

    Example: gpucloud node uncordon gpu-7
    """
    _cordon(invocation, name, cordoned=False)


@click.command()
@click.argument("name")
@click.option("--grace", "grace_seconds", type=DURATION, help="the time that claims have to end, like 10m")
@click.option("--dry-run", is_flag=True, help="show which claims would move, and where to; change nothing")
@output_options
@pass_invocation
def drain(invocation: Invocation, name: str, grace_seconds: int | None, dry_run: bool) -> None:
    """Drain a node: it takes no new claims, and its claims return to the queue; `uncordon` ends that.

    Example: gpucloud node drain gpu-7 --grace 10m
    """
    with invocation.api() as api:
        path, body = f"{path_of(NODE, None, name)}drain/", {"grace_seconds": grace_seconds}
        invocation.show(api.post(path, body, dry_run=dry_run or None).body)


@click.command()
@click.argument("name")
@output_options
@pass_invocation
def lift_fence(invocation: Invocation, name: str) -> None:
    """Lift a node's fence: it takes new claims again after a fence for unclaimed GPU processes.

    Example: gpucloud node lift-fence gpu-7
    """
    with invocation.api() as api:
        invocation.show(api.post(f"{path_of(NODE, None, name)}lift-fence/", {}).body)


@click.command("cordon")
@click.argument("gpu")
@click.option("--dry-run", is_flag=True, help="show how many claims and reservations this affects; change nothing")
@output_options
@pass_invocation
def cordon_gpu(invocation: Invocation, gpu: str, dry_run: bool) -> None:
    """Cordon a GPU, given as NODE/INDEX or by its uuid: it takes no new claims, and running claims stay.

    Example: gpucloud gpu cordon gpu-7/3
    """
    _cordon_gpu(invocation, gpu, cordoned=True, dry_run=dry_run)


@click.command("uncordon")
@click.argument("gpu")
@output_options
@pass_invocation
def uncordon_gpu(invocation: Invocation, gpu: str) -> None:
    """Uncordon a GPU, given as NODE/INDEX or by its uuid: it takes new claims again.

    Example: gpucloud gpu uncordon gpu-7/3
    """
    _cordon_gpu(invocation, gpu, cordoned=False)


@click.command()
@click.argument("uuid")
@output_options
@pass_invocation
def clear(invocation: Invocation, uuid: str) -> None:
    """Clear a GPU's XID error after a reset.

    Example: gpucloud gpu clear GPU-5f3b…
    """
    with invocation.api() as api:
        invocation.show(api.post(f"{path_of(GPU, None, uuid)}clear/", {}).body)


@click.command()
@click.argument("name")
@output_options
@pass_invocation
def forget(invocation: Invocation, name: str) -> None:
    """Forget a lost node: release its claims, and refuse its agent.

    Example: gpucloud node forget gpu-7
    """
    with invocation.api() as api:
        invocation.show(api.post(f"{path_of(NODE, None, name)}forget/", {}).body)


@click.command()
@click.argument("name")
@output_options
@pass_invocation
def drift(invocation: Invocation, name: str) -> None:
    """Show a node's drift: its desired state, its actual state, and manual changes on the machine.

    Example: gpucloud node drift gpu-7
    """
    with invocation.api() as api:
        invocation.show(api.get(f"{path_of(NODE, None, name)}drift/").body)


@click.command()
@click.argument("name")
@output_options
@pass_invocation
def repair(invocation: Invocation, name: str) -> None:
    """Repair a node's drift: its agent undoes manual changes on the machine.

    Example: gpucloud node repair gpu-7
    """
    with invocation.api() as api:
        invocation.show(api.post(f"{path_of(NODE, None, name)}repair/", {}).body)


def _cordon(invocation: Invocation, name: str, *, cordoned: bool) -> None:
    with invocation.api() as api:
        invocation.show(api.patch(path_of(NODE, None, name), {"cordoned": cordoned}).body)


def _cordon_gpu(invocation: Invocation, name: str, *, cordoned: bool, dry_run: bool = False) -> None:
    with invocation.api() as api:
        path = path_of(GPU, None, _uuid_of(api, name))
        invocation.show(api.patch(path, {"cordoned": cordoned}, dry_run=dry_run or None).body)


def _uuid_of(api: Api, name: str) -> str:
    """Return the uuid of the GPU that is named NODE/INDEX, or the name itself. Raises Usage."""
    node, slash, index = name.rpartition("/")
    if not slash:
        return name
    if not (node and index.isascii() and index.isdigit()):
        raise Usage(f"{name!r} is no GPU: give NODE/INDEX, like gpu-7/3, or a uuid.")
    found = list(api.rows(GPU.path, node=node, index=int(index), present=True, most=2))
    if len(found) != 1:
        why = "has several GPUs" if found else "has no GPU"
        raise Usage(f"Node {node} {why} with index {index}: see `gpucloud gpu list --node {node}`.")
    return str(found[0]["uuid"])


def _enrolment(invocation: Invocation, node: dict[str, Any]) -> None:
    if node["enrolment_token"] is None:
        # The first response was lost and the second one has no secrets.
        raise Failure(
            f"Node {node['name']} is made, but its token was lost on the way: `gpucloud node enrol` makes another."
        )
    if invocation.structured:
        invocation.show(node)
        return
    output.say(f"node {node['name']} awaits its agent; run this there as root, within 24 hours:")
    click.echo(node["command"])
