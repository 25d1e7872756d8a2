"""Commands of every resource, built from the table: list, show, create, change, remove."""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import click

from gpucloud_cli import output
from gpucloud_cli.addressing import NAMED, find_claim, refuse_unknown
from gpucloud_cli.amounts import misplaced_size
from gpucloud_cli.api import PAGE
from gpucloud_cli.failures import Usage
from gpucloud_cli.fields import Field
from gpucloud_cli.nouns import PARENTS, WORDING
from gpucloud_cli.options import Command, Invocation, body, field_options, output_options, pass_invocation
from gpucloud_cli.resources import Resource
from gpucloud_cli.wording import HELP


def group(resource: Resource) -> click.Group:
    """Return the resource's commands."""
    made = click.Group(resource.name, help=f"{WORDING[resource.name].title}.")
    for verb, make in MAKERS.items():
        if verb in resource.verbs:
            made.add_command(make(resource), verb)
    return made


def path_of(resource: Resource, parent: str | None, key: object = None) -> str:
    """Return the path of the collection, or of one object in it; values are quoted."""
    path = resource.path.format(parent=quote(parent or "", safe=""))
    if key is None:
        return path
    text = quote(str(key), safe="")
    if text.strip(".") == "":
        raise Usage(f"{key!r} names nothing.")
    return f"{path}{text}/"


def _help(resource: Resource, verb: str, sentence: str) -> str:
    """Return a command's help: a sentence and an example."""
    wording = WORDING[resource.name]
    parent = f"--{resource.parent} {PARENTS[resource.parent]}" if resource.parent else ""
    key = wording.key if verb in {"show", "change", "remove"} else ""
    words = ("gpucloud", resource.name, verb, parent, key, wording.arguments.get(verb, ""))
    return f"{sentence}\n\nExample: {' '.join(word for word in words if word)}"


def _parents(resource: Resource) -> tuple[Field, ...]:
    if resource.parent is None:
        return ()
    return (Field(resource.parent, help=HELP[resource.parent], required=True),)


def _parent(resource: Resource, given: dict[str, Any]) -> str | None:
    return None if resource.parent is None else given[f"{resource.parent}_"]


def _previews(resource: Resource, method: str) -> Callable[[Command], Command]:
    """Return a decorator that adds `--dry-run`, if the API has it."""
    if not resource.previews(method):
        return lambda command: command
    return click.option("--dry-run", is_flag=True, help=HELP.get(f"{resource.name}.dry_run", HELP["dry_run"]))


def _list(resource: Resource) -> click.Command:
    past = f"; {resource.past} ones only with --all" if resource.history else ""

    @click.command(help=_help(resource, "list", f"List {WORDING[resource.name].plural}, {resource.order}{past}."))
    @field_options((*_parents(resource), *resource.filters))
    @limits(resource)
    @output_options
    @pass_invocation
    def command(invocation: Invocation, /, everything: bool, limit: int, **given: Any) -> None:
        parent = _parent(resource, given)
        wanted = body(resource.filters, given)
        if resource.history and not everything and "state" not in wanted:
            wanted["live"] = True
        with invocation.api() as api:
            if wanted.get("claim"):
                wanted["claim"] = find_claim(api, wanted["claim"])
            rows = first(api.rows, path_of(resource, parent), 0 if everything else limit, **wanted)
            if not rows:
                refuse_unknown(api, wanted)
        invocation.show(rows, columns=resource.columns, wide=resource.wide)

    return command


def limits(resource: Resource) -> Callable[[Command], Command]:
    """Return a decorator that adds `--limit` and `--all`."""
    also = f", {resource.past} ones too" if resource.history else ""

    def decorate(command: Command) -> Command:
        everything = click.option("--all", "everything", is_flag=True, help=f"list all{also}, not only the first")
        limit = click.option(
            "--limit", type=click.IntRange(0), default=PAGE, show_default=True, help="list so many at most; 0: all"
        )
        return limit(everything(command))

    return decorate


def first(read: Callable[..., Iterator[Any]], path: str, limit: int, **wanted: Any) -> list[Any]:
    """Return so many rows at most, 0 for all, and say on stderr if there are more."""
    rows = list(read(path, most=limit + 1 if limit else None, **wanted))
    if limit and len(rows) > limit:
        del rows[limit:]
        output.say(f"these are the first {limit}; --limit 0 lists the rest too")
    return rows


def _show(resource: Resource) -> click.Command:
    @click.command(help=_help(resource, "show", f"Show {WORDING[resource.name].noun}."))
    @field_options(_parents(resource))
    @click.argument("key", metavar=(resource.name if resource.name in NAMED else resource.key).upper())
    @output_options
    @pass_invocation
    def command(invocation: Invocation, /, key: str, **given: Any) -> None:
        parent = _parent(resource, given)
        with invocation.api() as api:
            name = NAMED[resource.name](api, key) if resource.name in NAMED else key
            invocation.show(api.get(path_of(resource, parent, name)).body)

    return command


def _create(resource: Resource) -> click.Command:
    noun = WORDING[resource.name].noun
    sentence = f"Create {noun}, or change their role." if resource.name == "member" else f"Create {noun}."

    @click.command(help=_help(resource, "create", sentence))
    @field_options((*_parents(resource), *resource.fields))
    @_previews(resource, "POST")
    @output_options
    @pass_invocation
    def command(invocation: Invocation, /, dry_run: bool = False, **given: Any) -> None:
        parent = _parent(resource, given)
        path, wanted = path_of(resource, parent), body(resource.fields, given)
        _refuse_misplaced(wanted, wanted)
        with invocation.api() as api:
            invocation.show(api.post(path, wanted, dry_run=dry_run or None).body)

    return command


def _refuse_misplaced(wanted: dict[str, Any], row: dict[str, Any]) -> None:
    if words := misplaced_size(wanted, row.get("resource", row.get("field"))):
        raise Usage(f"{words}.")


def _change(resource: Resource) -> click.Command:
    fields = resource.changes
    sentence = f"Change {WORDING[resource.name].noun}; options that are not given stay as they are."

    @click.command(help=_help(resource, "change", sentence))
    @click.argument("key", metavar=resource.key.upper())
    @field_options(fields, required=False)
    @click.option("--if-version", type=click.INT, help="fail (exit 3) unless it is still at this version")
    @_previews(resource, "PATCH")
    @output_options
    @pass_invocation
    def command(
        invocation: Invocation, /, key: str, if_version: int | None, dry_run: bool = False, **given: Any
    ) -> None:
        wanted = body(fields, given)
        if not wanted:
            raise Usage("Nothing to change was given: see --help.")
        with invocation.api() as api:
            path = path_of(resource, None, key)
            present = api.get(path)
            _refuse_misplaced(wanted, present.body)
            etag = present.etag if if_version is None else f'"{if_version}"'
            invocation.show(api.patch(path, wanted, etag=etag, dry_run=dry_run or None).body)

    return command


def _remove(resource: Resource) -> click.Command:
    @click.command(help=_help(resource, "remove", f"Remove {WORDING[resource.name].noun}."))
    @field_options(_parents(resource))
    @click.argument("key", metavar=resource.key.upper())
    @_previews(resource, "DELETE")
    @output_options
    @pass_invocation
    def command(invocation: Invocation, /, key: str, dry_run: bool = False, **given: Any) -> None:
        parent = _parent(resource, given)
        with invocation.api() as api:
            path = path_of(resource, parent, key)
            # A quota is removed at the version that was read; a member has none.
            etag = None if "show" not in resource.verbs else api.get(path).etag
            answer = api.delete(path, etag=etag, dry_run=dry_run or None)
        if dry_run:
            invocation.show(answer.body)
        else:
            output.say(f"{resource.name} {key} is removed")

    return command


MAKERS = {"list": _list, "show": _show, "create": _create, "change": _change, "remove": _remove}
