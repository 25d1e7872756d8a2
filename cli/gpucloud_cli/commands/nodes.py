"""`node add|enrol` with a one-time token, and `gpu cordon|uncordon` by NODE/INDEX."""

from dataclasses import replace
from typing import Any

import click

from gpucloud_cli import output
from gpucloud_cli.api import Api
from gpucloud_cli.failures import Failure, Usage
from gpucloud_cli.fields import body_fields
from gpucloud_cli.options import Invocation, body, field_options, output_options, pass_invocation
from gpucloud_cli.resources import BY_NAME
from gpucloud_cli.verbs import path_of

NODE, GPU = BY_NAME["node"], BY_NAME["gpu"]
DEFAULT_POOL = "default"
ADDED = tuple(
    replace(field, required=False, help=f"{field.help}; default: {DEFAULT_POOL}") if field.name == "pool" else field
    for field in body_fields("POST nodes/", "node", key="name")
)


@click.command()
@field_options(ADDED)
@output_options
@pass_invocation
def add(invocation: Invocation, /, **given: Any) -> None:
    """Add a node; print the command for its machine, with the node's one-time enrolment token.

    Example: gpucloud node add gpu-7 --pool default
    """
    with invocation.api() as api:
        _enrolment(invocation, api.post(NODE.path, {"pool": DEFAULT_POOL, **body(ADDED, given)}).body)


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


COMMANDS = {"node": (add, enrol), "gpu": (cordon_gpu, uncordon_gpu)}
