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
from gpucloud_cli.failures import Failure, Usage
from gpucloud_cli.options import Invocation, output_options, pass_invocation, patience


@click.command()
@click.argument("url", required=False)
def login(url: str | None) -> None:
    """Log in: save a server's address and a token in the config file (mode 0600).

    The token is asked for on a terminal, and read from stdin otherwise: it is never an option, because options appear
    in the list of processes and in the shell's history.

    Example: gpucloud login https://gpucloud.example.org
    """
    path = access.config_path(os.environ)
    saved = access.read(path).get("url")
    on_terminal = sys.stdin.isatty()
    address = url or os.environ.get("GPUCLOUD_URL") or saved
    if address is None and on_terminal:
        address = click.prompt("Server", err=True)
    address = access.check_url(address or "")
    token = getpass.getpass("Token (gpc_…): ") if on_terminal else sys.stdin.readline()
    if not token.strip():
        raise Usage("No token was given: type it, or send it to stdin, as in `gpucloud login URL < token`.")
    token = access.check_token(token)
    with Api(access.Access(address, token), patience_seconds=patience()) as server:
        me = server.get("me/").body
    access.write_private(path, json.dumps({"url": address, "token": token}) + "\n")
    output.say(f"signed in to {address} as {_who(me)}; kept in {path}")


@click.command()
def logout() -> None:
    """Log out: remove the token from the config file; the address stays.

    The token itself stays valid: `gpucloud token revoke` ends it.

    Example: gpucloud logout
    """
    path = access.config_path(os.environ)
    saved = access.read(path)
    if saved.pop("token", None) is None:
        output.say("there is no token to remove")
        return
    access.write_private(path, json.dumps(saved) + "\n")
    output.say(f"the token is removed from {path}")


@click.command()
@output_options
@pass_invocation
def whoami(invocation: Invocation) -> None:
    """Show the token's owner, roles and scopes.

    Example: gpucloud whoami
    """
    with invocation.api() as server:
        invocation.show(server.get("me/").body)


@click.command("api")
@click.argument("method", type=click.Choice(["GET", "POST", "PATCH", "DELETE"], case_sensitive=False))
@click.argument("path")
@click.option("--data", type=click.File("r"), metavar="FILE", help="a JSON body; - for stdin")
@click.option("--if-version", type=click.INT, help="If-Match: fail (exit 3) unless it is still at this version")
@output_options
@pass_invocation
def api(invocation: Invocation, method: str, path: str, data: IO[str] | None, if_version: int | None) -> None:
    """Call any route below /api/v1/ and print its JSON.

    Example: gpucloud api GET "rounds/?pool=default"
    """
    body = _body(data)
    headers = {} if if_version is None else {"If-Match": f'"{if_version}"'}
    with invocation.api() as server:
        if method == "POST":
            answer = server.post(path, {} if body is None else body)
        else:
            answer = server.request(method, path, body=body, headers=headers)
    if answer.body is None:
        return
    if invocation.structured:
        invocation.show(answer.body)
    else:
        output.as_json(answer.body)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of `gpucloud` for a shell.

    Example: source <(gpucloud completion bash)
    """
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


COMMANDS = {"": (login, logout, whoami, api, completion)}
