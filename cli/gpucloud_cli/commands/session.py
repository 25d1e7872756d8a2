"""`login`, `logout`, `whoami`, `api`, `completion`."""

import getpass
import json
import os
import sys
from typing import IO, Any

import click
from click.shell_completion import get_completion_class

from gpucloud_cli import access, output
from gpucloud_cli.api import Api
from gpucloud_cli.doors import Asked, answers, asked, patience
from gpucloud_cli.failures import Failure, Usage


def join(root: click.Group) -> None:
    """Take part in the command tree."""
    for command in (login, logout, whoami, api, completion):
        root.add_command(command)


@click.command()
@click.argument("url", required=False)
def login(url: str | None) -> None:
    """Keep a server's address and a token in the config file (mode 0600).

    The token is asked for on a terminal, and read from stdin otherwise: it is never an option, for options stand in the
    list of processes and in the shell's history.
    """
    path = access.config_path(os.environ)
    saved = access.read(path).get("url")
    on_terminal = sys.stdin.isatty()
    address = url or os.environ.get("GPUCLOUD_URL") or saved
    if address is None and on_terminal:
        address = click.prompt("Server", err=True)
    address = access.checked_url(address or "")
    token = getpass.getpass("Token (gpc_…): ") if on_terminal else sys.stdin.readline()
    if not token.strip():
        raise Usage("No token was given: type it, or send it to stdin, as in `gpucloud login URL < token`.")
    token = access.checked_token(token)
    with Api(access.Access(address, token), patience_seconds=patience()) as server:
        me = server.get("me/").body
    access.write_private(path, json.dumps({"url": address, "token": token}) + "\n")
    output.say(f"signed in to {address} as {_who(me)}; kept in {path}")


@click.command()
def logout() -> None:
    """Remove the token from the config file; the address stays.

    The token itself stays valid: `gpucloud token revoke` ends it.
    """
    path = access.config_path(os.environ)
    saved = access.read(path)
    if saved.pop("token", None) is None:
        output.say("there is no token to remove")
        return
    access.write_private(path, json.dumps(saved) + "\n")
    output.say(f"the token is removed from {path}")


@click.command()
@answers
@asked
def whoami(asked: Asked) -> None:
    """Say who the token is, and what it may do."""
    with asked.api() as server:
        asked.show(server.get("me/").body)


@click.command("api")
@click.argument("method", type=click.Choice(["GET", "POST", "PATCH", "DELETE"], case_sensitive=False))
@click.argument("path")
@click.option("--data", type=click.File("r"), metavar="FILE", help="the body, JSON; - for stdin")
@click.option("--if-version", type=click.INT, help="If-Match: refuse (exit 3) unless it is still at this version")
@answers
@asked
def api(asked: Asked, method: str, path: str, data: IO[str] | None, if_version: int | None) -> None:
    """Call any route below /api/v1/, like `gpucloud api GET "rounds/?pool=default"`; the answer is JSON."""
    body = _body(data)
    headers = {} if if_version is None else {"If-Match": f'"{if_version}"'}
    with asked.api() as server:
        if method == "POST":
            answer = server.post(path, {} if body is None else body)
        else:
            answer = server.request(method, path, body=body, headers=headers)
    if answer.body is not None:
        output.as_json(answer.body)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what completes `gpucloud` in this shell: `source <(gpucloud completion bash)`."""
    found = get_completion_class(shell)
    if found is None:
        raise Failure(f"There is no completion for {shell}.")
    root = click.get_current_context().find_root().command
    click.echo(found(root, {}, "gpucloud", "_GPUCLOUD_COMPLETE").source())


def _who(me: dict[str, Any]) -> str:
    if me["operator"]:
        return f"{me['name']}, operator"
    return f"{me['name']} ({', '.join(f'{role} of {slug}' for slug, role in me['roles'].items()) or 'no tenant'})"


def _body(data: IO[str] | None) -> Any:
    if data is None:
        return None
    try:
        return json.load(data)
    except ValueError as error:
        raise Usage(f"{data.name} is not JSON: {error}") from error
