"""Shared options of commands, and the API client made from them."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click

from gpucloud_cli import output
from gpucloud_cli.access import resolve
from gpucloud_cli.amounts import NULL, seconds
from gpucloud_cli.api import TIMEOUT_SECONDS, Api
from gpucloud_cli.failures import Usage
from gpucloud_cli.fields import Field
from gpucloud_cli.resources import BY_NAME

# A server that restarts is back in a few seconds; a pipeline that failed at once would only be restarted.
PATIENCE = "10s"
FORMATS = ("table", "wide", "json", "yaml", "name")
TENANT_VARIABLE = "GPUCLOUD_TENANT"
Command = TypeVar("Command", bound=Callable[..., Any])


class Invocation:
    """Connection and output options of one command."""

    def __init__(self) -> None:
        self.url: str | None = None
        self.token_file: str | None = None
        self.format = "table"

    @property
    def structured(self) -> bool:
        """Return True if the output is for programs: JSON or YAML."""
        return self.format in ("json", "yaml")

    def api(self, *, patience_seconds: float | None = None, timeout_seconds: float = TIMEOUT_SECONDS) -> Api:
        """Return a client of the server in flags, environment or config file."""
        access = resolve(url=self.url, token_file=self.token_file, environment=os.environ)
        return Api(
            access,
            patience_seconds=patience() if patience_seconds is None else patience_seconds,
            timeout_seconds=timeout_seconds,
            options=_options_by_field(),
        )

    def show(self, data: Any, *, columns: Iterable[str] = (), wide: Iterable[str] = ()) -> None:
        """Print data in the requested format; by default a list as a table, and one object as its fields."""
        if self.format == "json":
            output.as_json(data)
        elif self.format == "yaml":
            output.as_yaml(data)
        elif self.format == "name":
            output.names(data if isinstance(data, list) else [data], _key())
        elif isinstance(data, list):
            output.table(data, (*columns, *wide) if self.format == "wide" else tuple(columns))
        else:
            output.facts(data)


def _key() -> str:
    """Return the field that names what this command prints."""
    parent = click.get_current_context().parent
    resource = BY_NAME.get(str(parent and parent.info_name))
    return "uid" if resource is None else resource.key


def _options_by_field() -> dict[str, str]:
    """Return this command's option, or argument, for each field of the API."""
    context = click.get_current_context(silent=True)
    found: dict[str, str] = {}
    if context is None:
        return found
    for one in context.command.params:
        # `class_` and `tenant_` are parameters' names of `class` and `tenant`; `--overlap` sets `overlap_seconds`.
        name = str(one.name).rstrip("_")
        option = max(one.opts, key=len) if isinstance(one, click.Option) else one.make_metavar(context)
        found = {f"{name}_seconds": option, f"{name}_at": option} | found | {name: option}
    return found


def patience() -> int:
    """Return how long a lost request is retried, in seconds.

    Raises Usage.
    """
    try:
        return seconds(os.environ.get("GPUCLOUD_PATIENCE") or PATIENCE)
    except ValueError as error:
        raise Usage(f"GPUCLOUD_PATIENCE: {error}") from error


pass_invocation = click.make_pass_decorator(Invocation, ensure=True)


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def keep(ctx: click.Context, _param: click.Parameter, value: Any) -> Any:
        if value:
            setattr(ctx.ensure_object(Invocation), name, value)
        return value

    return keep


def connection_options(command: Command) -> Command:
    """Add the options of commands that talk to the server."""
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


def _json(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Invocation).format = "json"


def output_options(command: Command) -> Command:
    """Add the connection options, `--output` and `--json`."""
    form = click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        expose_value=False,
        callback=_keep("format"),
        help="the output: a table (default), with more columns, JSON, YAML, or names only",
    )
    json = click.option("--json", is_flag=True, expose_value=False, callback=_json, help="the same as -o json")
    return connection_options(form(json(command)))


def field_options(fields: Iterable[Field], *, required: bool = True) -> Callable[[Command], Command]:
    """Add an option, or the argument, for each field."""

    def decorate(command: Command) -> Command:
        for field in reversed(list(fields)):
            must = required and field.required
            # Only where a tenant is required: as a default filter it would silently hide other tenants' rows.
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
    """Return the parameter's name: some fields are Python keywords (`class`)."""
    return f"{field.name}_"


def body(fields: Iterable[Field], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given values under the API's names."""
    found: dict[str, Any] = {}
    for field in fields:
        said = given.get(variable(field))
        if said is not None and said != ():
            found[field.name] = None if said is NULL else list(said) if field.many else said
    return found


def tenant_of(api: Api, named: str | None) -> str:
    """Return the tenant: as named, or GPUCLOUD_TENANT, or the token's only one.

    Raises Usage.
    """
    if found := named or os.environ.get(TENANT_VARIABLE):
        return found
    roles = api.get("me/").body["roles"]
    if len(roles) == 1:
        return str(next(iter(roles)))
    raise Usage(f"Which tenant? Give --tenant or set GPUCLOUD_TENANT{': ' if roles else ''}{', '.join(sorted(roles))}.")
