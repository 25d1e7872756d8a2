"""What commands share: the options that every one has, and the way from an option to the API."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click

from gpucloud_cli import output
from gpucloud_cli.access import resolve
from gpucloud_cli.amounts import NULL, seconds
from gpucloud_cli.api import TIMEOUT_SECONDS, Api
from gpucloud_cli.failures import Usage
from gpucloud_cli.resources import Field

# A server that restarts is back in a few seconds; a pipeline that fails at once would only be started again.
PATIENCE = "10s"
TENANT_VARIABLE = "GPUCLOUD_TENANT"
Command = TypeVar("Command", bound=Callable[..., Any])


class Asked:
    """How this command is to reach the server and to answer."""

    def __init__(self) -> None:
        self.url: str | None = None
        self.token_file: str | None = None
        self.json = False

    def api(self, *, patience_seconds: float | None = None, timeout_seconds: float = TIMEOUT_SECONDS) -> Api:
        """The server, as flags, environment and config file name it."""
        access = resolve(url=self.url, token_file=self.token_file, environment=os.environ)
        return Api(
            access,
            patience_seconds=patience() if patience_seconds is None else patience_seconds,
            timeout_seconds=timeout_seconds,
        )

    def show(self, data: Any, *, columns: Iterable[str] = ()) -> None:
        """A list as a table, one thing as its facts; JSON where that is asked for."""
        if self.json:
            output.as_json(data)
        elif isinstance(data, list):
            output.table(data, tuple(columns))
        else:
            output.facts(data)


def patience() -> int:
    """For how long a lost request is tried again. Raises Usage."""
    try:
        return seconds(os.environ.get("GPUCLOUD_PATIENCE") or PATIENCE)
    except ValueError as error:
        raise Usage(f"GPUCLOUD_PATIENCE: {error}") from error


asked = click.make_pass_decorator(Asked, ensure=True)


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def keep(ctx: click.Context, _param: click.Parameter, value: Any) -> Any:
        if value:
            setattr(ctx.ensure_object(Asked), name, value)
        return value

    return keep


def connects(command: Command) -> Command:
    """The options of whatever talks to the server."""
    for option in (
        click.option("--url", metavar="URL", expose_value=False, callback=_keep("url"), help="the server's address"),
        click.option(
            "--token-file",
            metavar="FILE",
            type=click.Path(dir_okay=False),
            expose_value=False,
            callback=_keep("token_file"),
            help="a file with the token",
        ),
    ):
        command = option(command)
    return command


def answers(command: Command) -> Command:
    """`connects`, and data as JSON."""
    option = click.option("--json", is_flag=True, expose_value=False, callback=_keep("json"), help="JSON on stdout")
    return connects(option(command))


def takes(fields: Iterable[Field], *, required: bool = True) -> Callable[[Command], Command]:
    """An option, or the argument, for each field."""

    def decorate(command: Command) -> Command:
        for field in reversed(list(fields)):
            must = required and field.required
            # Where a tenant must be named; a list that it would narrow unasked hid what one looks for.
            default = TENANT_VARIABLE if must and field.name == "tenant" else None
            if field.argument:
                command = click.argument(variable(field), metavar=field.name.upper(), type=field.kind)(command)
            else:
                command = click.option(
                    field.option,
                    variable(field),
                    type=field.kind,
                    required=must,
                    envvar=default,
                    multiple=field.many,
                    help=field.help,
                )(command)
        return command

    return decorate


def variable(field: Field) -> str:
    """The field's name where Python's own words (`class`) are in the way."""
    return f"{field.name}_"


def body(fields: Iterable[Field], given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, as the API has it; takes it out of `given`."""
    found: dict[str, Any] = {}
    for field in fields:
        said = given.get(variable(field))
        if said is not None and said != ():
            found[field.name] = None if said is NULL else list(said) if field.many else said
    return found


def tenant_of(api: Api, named: str | None) -> str:
    """The tenant that is meant: as named, or GPUCLOUD_TENANT, or the token's only one. Raises Usage."""
    if found := named or os.environ.get(TENANT_VARIABLE):
        return found
    roles = api.get("me/").body["roles"]
    if len(roles) == 1:
        return str(next(iter(roles)))
    raise Usage(f"Which tenant? Give --tenant or set GPUCLOUD_TENANT{': ' if roles else ''}{', '.join(sorted(roles))}.")
