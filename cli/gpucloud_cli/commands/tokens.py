"""`token create|revoke`."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from gpucloud_cli import access, output
from gpucloud_cli.amounts import DURATION
from gpucloud_cli.doors import Asked, answers, asked, connects
from gpucloud_cli.failures import Failure
from gpucloud_cli.resources import BY_NAME, ROLES
from gpucloud_cli.verbs import path_of

TOKEN = BY_NAME["token"]
OUT = click.option("--out", type=click.Path(path_type=Path), help="write it to this file (mode 0600), not to stdout")


def join(root: click.Group) -> None:
    """Take part in the command tree."""
    group = root.commands["token"]
    assert isinstance(group, click.Group)
    group.add_command(create)
    group.add_command(revoke)
    group.add_command(rotate)


@click.command()
@click.argument("name")
@click.option("--tenant", help="a tenant's slug; without it the whole platform (operators)")
@click.option("--role", type=ROLES, help="member unless given")
@click.option("--scope", "scopes", multiple=True, help="like claims:write; may be repeated; all unless given")
@click.option("--cidr", "cidrs", multiple=True, help="only from this network; may be repeated")
@click.option("--expires", type=DURATION, help="valid for so long, like 90d")
@OUT
@answers
@asked
def create(
    asked: Asked,
    *,
    name: str,
    tenant: str | None,
    role: str | None,
    scopes: tuple[str, ...],
    cidrs: tuple[str, ...],
    expires: int | None,
    out: Path | None,
) -> None:
    """Make a token; this is the only time that it is shown."""
    body = {"name": name, "tenant": tenant}
    more = {"role": role, "scopes": list(scopes), "cidrs": list(cidrs), "expires_at": _moment(expires)}
    with asked.api() as api:
        token = api.post("tokens/", body | {key: value for key, value in more.items() if value}).body
    _show_once(asked, token, out)


@click.command()
@click.argument("key")
@click.option("--overlap", type=DURATION, help="the old one works for so long; 1d unless given, 0 for not at all")
@OUT
@answers
@asked
def rotate(asked: Asked, *, key: str, overlap: int | None, out: Path | None) -> None:
    """Make a token like this one, and let this one end after the overlap."""
    body = {} if overlap is None else {"overlap_seconds": overlap}
    with asked.api() as api:
        token = api.post(f"{path_of(TOKEN, None, key)}rotate/", body).body
    _show_once(asked, token, out)


def _show_once(asked: Asked, token: dict[str, Any], out: Path | None) -> None:
    if token["token"] is None:
        raise Failure(f"The token was made, but its text was lost on the way: `gpucloud token revoke {token['key']}`.")
    if out is not None:
        access.write_private(out, token.pop("token") + "\n")
        output.say(f"token {token['key']} is in {out}")
    if asked.json:
        output.as_json(token)
    elif out is None:
        output.say(f"token {token['key']}, shown this once:")
        click.echo(token["token"])


@click.command()
@click.argument("key")
@connects
@asked
def revoke(asked: Asked, key: str) -> None:
    """End a token, at once."""
    with asked.api() as api:
        api.delete(path_of(TOKEN, None, key))
    output.say(f"token {key} is revoked")


def _moment(seconds: int | None) -> str | None:
    return None if seconds is None else (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
