"""`pool rebalance|consolidate`, `proposal accept|dismiss`, and `queue list` over every pool."""

from typing import Any

import click

from gpucloud_cli import output
from gpucloud_cli.api import PAGE, Api
from gpucloud_cli.doors import Asked, answers, asked
from gpucloud_cli.resources import BY_NAME
from gpucloud_cli.verbs import path_of

POOL, PROPOSAL, QUEUE = BY_NAME["pool"], BY_NAME["proposal"], BY_NAME["queue"]
CHANGES = ("claim", "tenant", "claim_name", "kind", "state", "explanation")
PLANS = ("waiting_claim", "moves", "cost_mib", "frees", "explanation")
WAITING = (
    "pool", "position", "claim", "tenant", "name", "priority", "gpu_count", "core_request", "memory_mib", "starts",
    "reason",
)  # fmt: skip


def join(root: click.Group) -> None:
    """Take part in the command tree."""
    for group, commands in {
        "pool": (rebalance, consolidate),
        "proposal": (accept, dismiss),
        "queue": (waiting,),
    }.items():
        found = root.commands[group]
        assert isinstance(found, click.Group)
        for command in commands:
            found.add_command(command)


@click.command()
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="say what would change and why; change nothing")
@answers
@asked
def rebalance(asked: Asked, *, name: str, dry_run: bool) -> None:
    """Run the rebalancer over a pool, now (operators)."""
    with asked.api() as api:
        found = api.post(f"{path_of(POOL, None, name)}rebalance/", {}, dry_run=dry_run or None).body
    _explain(asked, found, found["changes"], CHANGES)


@click.command()
@click.argument("name")
@click.option("--most-moves", type=click.IntRange(1, 32), help="of one plan; 4 unless given")
@click.option("--most-memory", "most_memory_mib", type=click.IntRange(1), help="MiB to copy in one plan")
@click.option("--dry-run", is_flag=True, help="as it is anyway: nothing carries moves out yet")
@answers
@asked
def consolidate(asked: Asked, /, name: str, dry_run: bool, **bounds: int | None) -> None:
    """Say which moves of claims would free what in a pool (operators)."""
    with asked.api() as api:
        wanted = {name: value for name, value in bounds.items() if value is not None}
        found = api.get(f"{path_of(POOL, None, name)}consolidation/", **wanted).body
    _explain(asked, found, [{**plan, "moves": len(plan["moves"])} for plan in found["plans"]], PLANS)


def _explain(asked: Asked, found: dict[str, Any], rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    """JSON whole; for people a table, or why it is empty."""
    if asked.json:
        asked.show(found)
    elif rows:
        asked.show(rows, columns=columns)
    else:
        output.say(found["explanation"])


@click.command()
@click.argument("uid")
@answers
@asked
def accept(asked: Asked, *, uid: str) -> None:
    """Have it carried out."""
    with asked.api() as api:
        asked.show(api.post(f"{path_of(PROPOSAL, None, uid)}accept/", {}).body)


@click.command()
@click.argument("uid")
@click.option("--words", help="why not")
@answers
@asked
def dismiss(asked: Asked, *, uid: str, words: str | None) -> None:
    """Leave the claim as it is."""
    with asked.api() as api:
        body = {} if words is None else {"words": words}
        asked.show(api.post(f"{path_of(PROPOSAL, None, uid)}dismiss/", body).body)


@click.command("list")
@click.option("--pool", help="a pool's name; every pool's queue, one after the other, without it")
@click.option("--tenant", help="a tenant's slug")
@click.option("--all", "everything", is_flag=True, help=f"not only the first {PAGE} of each pool")
@answers
@asked
def waiting(asked: Asked, *, pool: str | None, tenant: str | None, everything: bool) -> None:
    """List what waits, when it will start and why it waits, next first."""
    with asked.api() as api:
        pools = [pool] if pool else [row["name"] for row in reversed(list(api.rows("pools/")))]
        rows = [row for name in pools for row in _of_pool(api, name, tenant, everything)]
    asked.show(rows if asked.json else [_line(row) for row in rows], columns=WAITING)


def _of_pool(api: Api, pool: str, tenant: str | None, everything: bool) -> list[dict[str, Any]]:
    wanted = {} if tenant is None else {"tenant": tenant}
    rows = list(api.rows(path_of(QUEUE, pool), most=None if everything else PAGE + 1, **wanted))
    if not everything and len(rows) > PAGE:
        del rows[PAGE:]
        output.say(f"these are the first {PAGE} of {pool}; --all lists the rest too")
    return [{"pool": pool, **row} for row in rows]


def _line(row: dict[str, Any]) -> dict[str, Any]:
    """A row for people: when, and the first reason."""
    estimate, reasons = row.get("estimate") or {}, row["reasons"]
    return {**row, "starts": estimate.get("at"), "reason": reasons[0]["detail"] if reasons else None}
