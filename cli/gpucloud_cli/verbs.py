"""The commands of every resource, built from the table: list, show, create, change, remove."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import click

from gpucloud_cli import output
from gpucloud_cli.api import PAGE
from gpucloud_cli.doors import Asked, Command, answers, asked, body, takes
from gpucloud_cli.failures import Usage
from gpucloud_cli.resources import POOL, TENANT, Field, Resource, misplaced


def group(resource: Resource) -> click.Group:
    """The resource's commands."""
    made = click.Group(resource.name, help=f"{resource.words[0].upper()}{resource.words[1:]}.")
    for verb, make in MAKERS.items():
        if verb in resource.verbs:
            made.add_command(make(resource), verb)
    return made


def path_of(resource: Resource, parent: str | None, key: object = None) -> str:
    """Where the collection, or one thing in it, lies; what people give is quoted."""
    path = resource.path.format(parent=quote(parent or "", safe=""))
    if key is None:
        return path
    text = quote(str(key), safe="")
    if text.strip(".") == "":
        raise Usage(f"{key!r} names nothing.")
    return f"{path}{text}/"


def _parents(resource: Resource) -> tuple[Field, ...]:
    if resource.parent is None:
        return ()
    return (replace(POOL if resource.parent == POOL.name else TENANT, required=True),)


def _parent(resource: Resource, given: dict[str, Any]) -> str | None:
    return None if resource.parent is None else given[f"{resource.parent}_"]


def _previews(resource: Resource) -> Callable[[Command], Command]:
    """`--dry-run`, where the API has it."""
    if not resource.previews:
        return lambda command: command
    return click.option(
        "--dry-run", is_flag=True, help="say who would be over, and what would start or wait; change nothing"
    )


def _list(resource: Resource) -> click.Command:
    @click.command(help=f"List {resource.words}, {resource.order}.")
    @takes((*_parents(resource), *resource.filters))
    @click.option("--all", "everything", is_flag=True, help=f"not only the first {PAGE}")
    @answers
    @asked
    def command(asked: Asked, /, everything: bool, **given: Any) -> None:
        with asked.api() as api:
            path = path_of(resource, _parent(resource, given))
            wanted = body(resource.filters, given)
            rows = list(api.rows(path, most=None if everything else PAGE + 1, **wanted))
        if not everything and len(rows) > PAGE:
            del rows[PAGE:]
            output.say(f"these are the first {PAGE}; --all lists the rest too")
        asked.show(rows, columns=resource.columns)

    return command


def _show(resource: Resource) -> click.Command:
    @click.command(help="Show one.")
    @takes(_parents(resource))
    @click.argument("key", metavar=resource.key.upper())
    @answers
    @asked
    def command(asked: Asked, /, key: str, **given: Any) -> None:
        with asked.api() as api:
            asked.show(api.get(path_of(resource, _parent(resource, given), key)).body)

    return command


def _create(resource: Resource) -> click.Command:
    @click.command(help="Give somebody a role, or change it." if resource.name == "member" else "Make one.")
    @takes((*_parents(resource), *resource.fields))
    @_previews(resource)
    @answers
    @asked
    def command(asked: Asked, /, dry_run: bool = False, **given: Any) -> None:
        path, wanted = path_of(resource, _parent(resource, given)), body(resource.fields, given)
        _refuse_misplaced(wanted, wanted)
        with asked.api() as api:
            asked.show(api.post(path, wanted, dry_run=dry_run or None).body)

    return command


def _refuse_misplaced(wanted: dict[str, Any], row: dict[str, Any]) -> None:
    if words := misplaced(wanted, row.get("resource", row.get("field"))):
        raise Usage(f"{words}.")


def _change(resource: Resource) -> click.Command:
    fields = [field for field in resource.fields if field.changes]

    @click.command(help="Change one: what is not given stays.")
    @click.argument("key", metavar=resource.key.upper())
    @takes(fields, required=False)
    @click.option("--if-version", type=click.INT, help="refuse (exit 3) unless it is still at this version")
    @_previews(resource)
    @answers
    @asked
    def command(asked: Asked, /, key: str, if_version: int | None, dry_run: bool = False, **given: Any) -> None:
        wanted = body(fields, given)
        if not wanted:
            raise Usage("Nothing to change was given: see --help.")
        with asked.api() as api:
            path = path_of(resource, None, key)
            present = api.get(path)
            _refuse_misplaced(wanted, present.body)
            etag = present.etag if if_version is None else f'"{if_version}"'
            asked.show(api.patch(path, wanted, etag=etag, dry_run=dry_run or None).body)

    return command


def _remove(resource: Resource) -> click.Command:
    @click.command(help="Take one away.")
    @takes(_parents(resource))
    @click.argument("key", metavar=resource.key.upper())
    @_previews(resource)
    @answers
    @asked
    def command(asked: Asked, /, key: str, dry_run: bool = False, **given: Any) -> None:
        with asked.api() as api:
            path = path_of(resource, _parent(resource, given), key)
            # A quota is removed at the version that was read; a member has none to read.
            etag = None if "show" not in resource.verbs else api.get(path).etag
            answer = api.delete(path, etag=etag, dry_run=dry_run or None)
        if dry_run:
            asked.show(answer.body)
        else:
            output.say(f"{resource.name} {key} is removed")

    return command


MAKERS = {"list": _list, "show": _show, "create": _create, "change": _change, "remove": _remove}
