"""`token create|revoke`."""

from pathlib import Path
from typing import Any

import click

from gpucloud_cli import access, output
from gpucloud_cli.failures import Failure
from gpucloud_cli.fields import body_fields
from gpucloud_cli.options import Invocation, body, connection_options, field_options, output_options, pass_invocation
from gpucloud_cli.resources import BY_NAME
from gpucloud_cli.verbs import path_of

TOKEN = BY_NAME["token"]
CREATED = body_fields("POST tokens/", "token", key="name")
ROTATED = body_fields("POST tokens/{}/rotate/", "token")
OUT = click.option("--out", type=click.Path(path_type=Path), help="write it to this file (mode 0600), not to stdout")


@click.command()
@field_options(CREATED)
@OUT
@output_options
@pass_invocation
def create(invocation: Invocation, /, out: Path | None, **given: Any) -> None:
    """Create a token; it is shown this once.

    Example: gpucloud token create ci --tenant vision --scope claims:write --expires 90d
    """
    with invocation.api() as api:
        token = api.post(TOKEN.path, body(CREATED, given)).body
    _show_once(invocation, token, out)


@click.command()
@click.argument("key")
@field_options(ROTATED)
@OUT
@output_options
@pass_invocation
def rotate(invocation: Invocation, /, key: str, out: Path | None, **given: Any) -> None:
    """Rotate a token: create a token like it, and end the old one after the overlap.

    Example: gpucloud token rotate KEY --overlap 1d
    """
    with invocation.api() as api:
        token = api.post(f"{path_of(TOKEN, None, key)}rotate/", body(ROTATED, given)).body
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


COMMANDS = {"token": (create, revoke, rotate)}
