"""`apply` and `export`: organisations, tenants, quotas, members and pools kept in git."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from gpucloud_cli import output
from gpucloud_cli.api import Api
from gpucloud_cli.declared import plan, present
from gpucloud_cli.declared.carrying_out import carry_out, report
from gpucloud_cli.declared.kinds import API_VERSION, DOCUMENTS, ORGANISATION, POOL, TENANT, Kind
from gpucloud_cli.failures import Failure, Usage
from gpucloud_cli.options import Invocation, connection_options, output_options, pass_invocation

COLOURS = {"create": "green", "change": "yellow", "remove": "red"}
HEAD = "# Made by `gpucloud export`; `gpucloud apply -f FILE` makes the server so again.\n"


@click.command()
@click.option("-f", "--file", "places", multiple=True, required=True, help="a YAML file, a directory, or - for stdin")
@click.option("--dry-run", is_flag=True, help="show the difference; change nothing")
@click.option("--prune", is_flag=True, help="remove entries that the documents' lists omit")
@click.option("--yes", is_flag=True, help="apply without a question")
@output_options
@pass_invocation
def apply(invocation: Invocation, /, places: tuple[str, ...], dry_run: bool, prune: bool, yes: bool) -> None:
    """Apply files to organisations, tenants, everything within them, and pools; print the difference first.

    Fields that a file omits stay as they are. If a document's list (`quotas`, `members`, …) is omitted it stays as it
    is; if it is present it is complete, and --prune removes other entries. Organisations, tenants and pools are never
    removed.

    Example: gpucloud apply -f platform.yaml --dry-run
    """
    # It reads YAML, which most commands do not need and is slow to import.
    from gpucloud_cli.declared import documents  # noqa: PLC0415

    declared = documents.read(places)
    with invocation.api() as api:
        planned = plan.make(declared, _rows(api, declared), prune=prune)
        for who in planned.left_alone:
            output.say(f"not in the files, and left alone without --prune: {who}")
        if not invocation.structured:
            _show(planned.changes)
        if dry_run or not planned.changes:
            if invocation.structured:
                invocation.show([change.data for change in planned.changes])
            output.say(f"{_count(planned.changes)} to make" if planned.changes else "no changes")
            return
        if not yes:
            _ask(planned.changes)
        outcome = carry_out(api, planned.changes, say=output.say)
    if invocation.structured:
        invocation.show(outcome.data)
    if outcome.failed is not None:
        raise report(outcome)
    output.say(f"{_count(outcome.applied)} applied")


@click.command()
@click.option(
    "--tenant", "tenants", multiple=True, help="export this tenant without pools and organisations; may be repeated"
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="a file; default: stdout")
@connection_options
@pass_invocation
def export(invocation: Invocation, /, tenants: tuple[str, ...], out: Path | None) -> None:
    """Export organisations, tenants, everything within them, and pools as YAML for `apply`.

    Example: gpucloud export --tenant vision --out vision.yaml
    """
    with invocation.api() as api:
        slugs = tenants or present.tenants(api)
        made = [] if tenants else [_document("Pool", row.values) for row in _sorted(present.pools(api))]
        made += [] if tenants else [_owner(api, ORGANISATION, slug) for slug in present.organisations(api)]
        made += [_owner(api, TENANT, slug) for slug in slugs]
    text = HEAD + output.yaml_text(*made, explicit_start=True)
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(f"{out} cannot be written: {error.strerror}") from error


def _rows(api: Api, declared: plan.Declared) -> list[present.Row]:
    """Return the server's rows for the kinds in the files."""
    rows = present.pools(api) if any(who.kind is POOL for who in declared.items) else []
    for who in declared.items:
        if who.kind in (ORGANISATION, TENANT):
            slug = str(who.names[0])
            kinds = [kind for kind in who.kind.within if (slug, kind) in declared.whole]
            rows += present.document(api, who.kind, slug, kinds)
    return rows


def _show(changes: list[plan.Change]) -> None:
    for change in changes:
        click.echo(click.style(change.line, fg=COLOURS[change.action]) if _coloured() else change.line)


def _coloured() -> bool:
    return output.console().color_system is not None


def _ask(changes: list[plan.Change]) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Usage("There is no terminal to ask on: give --yes to apply these changes, or --dry-run only to see them.")
    if not click.confirm(f"Make {_count(changes)}?", err=True):
        raise Failure("nothing was changed")


def _count(changes: list[plan.Change]) -> str:
    return f"{len(changes)} change{'' if len(changes) == 1 else 's'}"


def _sorted(rows: Iterable[present.Row]) -> list[present.Row]:
    return sorted(rows, key=lambda row: str(row.who))


def _document(kind: str, values: Any) -> dict[str, Any]:
    assert kind in DOCUMENTS
    return {"apiVersion": API_VERSION, "kind": kind, **values}


def _owner(api: Api, kind: Kind, slug: str) -> dict[str, Any]:
    """Return the document of an organisation or a tenant."""
    rows = present.document(api, kind, slug)
    if not rows:
        raise Usage(f"There is no {kind.name} {slug} that you may see.")
    lists = {str(one.listed): [dict(row.values) for row in _sorted(rows) if row.who.kind is one] for one in kind.within}
    return _document(kind.name.capitalize(), rows[0].values) | lists


COMMANDS = {"": (apply, export)}
