"""`token create|revoke`."""

from pathlib import Path
from typing import Any

import click

from gpucloud_cli import access, output
from gpucloud_cli.amounts import DURATION, IN
from gpucloud_cli.failures import Failure
from gpucloud_cli.fields import ROLES
from gpucloud_cli.options import Invocation, connection_options, output_options, pass_invocation
from gpucloud_cli.resources import BY_NAME
from gpucloud_cli.verbs import path_of

TOKEN = BY_NAME["token"]
OUT = click.option("--out", type=click.Path(path_type=Path), help="write it to this file (mode 0600), not to stdout")


def join(root: click.Group) -> None:
    """Add the commands to the tree."""
    group = root.commands["token"]
    assert isinstance(group, click.Group)
    group.add_command(create)
    group.add_command(revoke)
    group.add_command(rotate)


@click.command()
@click.argument("name")
@click.option("--tenant", help="a tenant's slug; default: the whole platform (operators)")
@click.option("--role", type=ROLES, help="the role; default: member")
@click.option("--scope", "scopes", multiple=True, help="a scope, like claims:write; may be repeated; default: all")
@click.option("--cidr", "cidrs", multiple=True, help="a network that may use it; may be repeated")
@click.option("--expires", type=IN, help="a time in ISO 8601, or like 90d from now")
@OUT
@output_options
@pass_invocation
def create(
    invocation: Invocation,
    *,
    name: str,
    tenant: str | None,
    role: str | None,
    scopes: tuple[str, ...],
    cidrs: tuple[str, ...],
    expires: str | None,
    out: Path | None,
) -> None:
    """Create a token; it is shown this once.

    Example: gpucloud token create ci --tenant vision --scope claims:write --expires 90d
    """
    body = {"name": name, "tenant": tenant}
    more = {"role": role, "scopes": list(scopes), "cidrs": list(cidrs), "expires_at": expires}
    with invocation.api() as api:
        token = api.post("tokens/", body | {key: value for key, value in more.items() if value}).body
    _show_once(invocation, token, out)


@click.command()
@click.argument("key")
@click.option("--overlap", type=DURATION, help="how long the old token stays valid; default: 1d; 0: end it at once")
@OUT
@output_options
@pass_invocation
def rotate(invocation: Invocation, *, key: str, overlap: int | None, out: Path | None) -> None:
    """Rotate a token: create a token like it, and end the old one after the overlap.

    Example: gpucloud token rotate KEY --overlap 1d
    """
    body = {} if overlap is None else {"overlap_seconds": overlap}
    with invocation.api() as api:
        token = api.post(f"{path_of(TOKEN, None, key)}rotate/", body).body
    _show_once(invocation, token, out)


def _show_once(invocation: Invocation, token: dict[str, Any], out: Path | None) -> None:
    if token["token"] is None:
        raise Failure(f"The token was made, but its text was lost on the way: `gpucloud token revoke {token['key']}`.")
    if out is not None:
        access.write_private(out, token.pop("token") + "\n")
        output.say(f"token {token['key']} is in {out}")
    if invocation.structured or (out is not None and invocation.format == "name"):
        invocation.show(token)
    elif out is None:
        output.say(f"token {token['key']}, shown this once:")
        click.echo(token["token"])


@click.command()
@click.argument("key")
@connection_options
@pass_invocation
def revoke(invocation: Invocation, key: str) -> None:
    """Revoke a token at once.

    Example: gpucloud token revoke KEY
    """
    with invocation.api() as api:
        api.delete(path_of(TOKEN, None, key))
    output.say(f"token {key} is revoked")
