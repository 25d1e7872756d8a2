"""`pool rebalance|consolidate|fair-share|what-if`, and `queue list` over all pools."""

import time
from typing import Any

import click

from gpucloud_cli import output
from gpucloud_cli.addressing import refuse_unknown
from gpucloud_cli.amounts import SIZE
from gpucloud_cli.api import Api
from gpucloud_cli.options import Invocation, output_options, pass_invocation
from gpucloud_cli.resources import BY_NAME
from gpucloud_cli.verbs import first, limits, path_of

POOL, QUEUE = BY_NAME["pool"], BY_NAME["queue"]
CHANGES = ("claim", "tenant", "claim_name", "kind", "state", "explanation")
PLANS = ("waiting_claim", "moves", "cost_mib", "frees", "explanation")
ACCEPTED = ("claim", "to_gpus", "state", "refusal")
WAITING = (
    "pool", "position", "claim", "tenant", "name", "priority", "gpu_count", "core_request", "memory_mib", "starts",
    "reason",
)  # fmt: skip


POLICIES = ("feedback", "percentile", "cron", "forecast")
REPLAYED = ("policy", "lent_core_hours", "throttled_percent", "changes_per_day", "wrong_percent")
KINDS = ("turns", "mps", "mps-per-tenant", "mig", "fair-share-current", "fair-share-decayed")
# Seconds between two looks at a what-if that runs.
LOOK_SECONDS = 1.0
SHARES = (
    "tenant",
    "weight",
    "waiting",
    "held_gpus",
    "past_gpus",
    "share_percent",
    "usage_percent",
    "factor",
    "order_percent",
)
SHARES_WIDE = ("held_memory_mib", "past_memory_mib")
WIDE = ("gpu_model", "group", "time_limit_seconds", "created_at")


@click.command()
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="show what would change and why; change nothing")
@click.option("--policy", type=click.Choice(POLICIES), help="with --dry-run: by this policy instead of the pool's")
@click.option("--days", type=click.IntRange(1, 30), help="with --dry-run: replay so many days under each policy")
@output_options
@pass_invocation
def rebalance(invocation: Invocation, *, name: str, dry_run: bool, policy: str | None, days: int | None) -> None:
    """Rebalance a pool now, or compare the policies on its last days (operators).

    Example: gpucloud pool rebalance default --dry-run --policy forecast --days 30
    """
    if (policy or days) and not dry_run:
        raise click.UsageError("--policy and --days change nothing: give --dry-run, too.")
    with invocation.api() as api:
        path = f"{path_of(POOL, None, name)}rebalance/"
        found = api.post(path, {}, dry_run=dry_run or None, policy=policy, days=days).body
    if found["replay"] is None or invocation.structured:
        _explain(invocation, found, found["changes"], CHANGES)
    else:
        invocation.show(found["replay"]["policies"], columns=REPLAYED)


@click.command()
@click.argument("name")
@click.option("--most-moves", type=click.IntRange(1, 32), help="most moves of one plan; default: 4")
@click.option("--most-memory", "most_memory_mib", type=SIZE, help="most memory to copy in one plan, like 16GiB")
@click.option("--accept", type=click.IntRange(1), help="order the moves of this plan, by its place in the list")
@click.option("--dry-run", is_flag=True, help="only list moves, also with --accept")
@output_options
@pass_invocation
def consolidate(invocation: Invocation, /, name: str, accept: int | None, dry_run: bool, **bounds: int | None) -> None:
    """List moves of claims that would free whole GPUs of a pool, or order those of one plan (operators).

    Example: gpucloud pool consolidate default --most-moves 4
    """
    path = f"{path_of(POOL, None, name)}consolidation/"
    with invocation.api() as api:
        wanted = {name: value for name, value in bounds.items() if value is not None}
        found = api.get(path, **wanted).body
        if accept is not None:
            if accept > len(found["plans"]):
                raise click.UsageError(found["explanation"] or f"There are {len(found['plans'])} plans.")
            moves = [{key: move[key] for key in ("claim", "to_gpus")} for move in found["plans"][accept - 1]["moves"]]
            done = moves if dry_run else api.post(f"{path}accept/", {"moves": moves}).body["moves"]
            invocation.show(done, columns=("claim", "to_gpus") if dry_run else ACCEPTED)
            return
    _explain(invocation, found, [{**plan, "moves": len(plan["moves"])} for plan in found["plans"]], PLANS)


@click.command("fair-share")
@click.argument("name")
@output_options
@pass_invocation
def fair_share(invocation: Invocation, /, name: str) -> None:
    """Show what tenants hold and held in a pool, and whose claims go first.

    Example: gpucloud pool fair-share default
    """
    with invocation.api() as api:
        found = api.get(f"{path_of(POOL, None, name)}fair-share/").body
    invocation.show(found if invocation.structured else found["tenants"], columns=SHARES, wide=SHARES_WIDE)


def _explain(
    invocation: Invocation, found: dict[str, Any], rows: list[dict[str, Any]], columns: tuple[str, ...]
) -> None:
    """Print JSON as it is; for people a table, or the reason why it is empty."""
    if invocation.structured:
        invocation.show(found)
    elif rows:
        invocation.show(rows, columns=columns)
    else:
        output.say(found["explanation"])


@click.command("what-if")
@click.argument("name")
@click.option("--days", type=click.IntRange(1, 90), help="days up to now; default: 30")
@click.option(
    "--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="a kind to compare; default: the four of sharing"
)
@click.option("--no-wait", is_flag=True, help="order it, and do not wait for its figures")
@click.option("--last", is_flag=True, help="show the last one; order nothing")
@output_options
@pass_invocation
def what_if(invocation: Invocation, /, name: str, no_wait: bool, last: bool, **given: Any) -> None:
    """Replay a pool's last days under other kinds of sharing or another fair share, and compare (operators).

    Example: gpucloud pool what-if default --days 7 --kind turns --kind mig
    """
    path = f"{path_of(POOL, None, name)}what-if/"
    wanted = {key: value for key, value in given.items() if value}
    with invocation.api() as api:
        found = api.get(path).body if last else api.post(path, wanted).body
        while not (no_wait or last) and found["state"] in ("pending", "running"):
            time.sleep(LOOK_SECONDS)
            found = api.get(path).body
    if invocation.structured:
        invocation.show(found)
    elif found["state"] != "done":
        output.say(found["words"] or f"{found['state']}: {found['progress_percent']} %")
    elif not found["claims"]:
        output.say(f"no claims in the last {found['days']} days")
    else:
        invocation.show(_by_figure(found["results"]), columns=("figure", *found["kinds"]))
    if found["state"] == "failed":
        raise SystemExit(1)


def _by_figure(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each figure, with a column for each kind."""
    names = [name for name in results[0] if name not in ("kind", "unfit", "waits")]
    reasons = sorted({reason for one in results for reason in one["unfit"]})
    rows = [{"figure": name, **{one["kind"]: one[name] for one in results}} for name in names]
    waits = {one["kind"]: {row["tenant"]: row["mean_seconds"] for row in one.get("waits", ())} for one in results}
    tenants = sorted({tenant for by_tenant in waits.values() for tenant in by_tenant})
    rows += [{"figure": f"mean wait of {name}", **{kind: waits[kind].get(name) for kind in waits}} for name in tenants]
    return rows + [
        {"figure": f"unfit: {reason}", **{one["kind"]: one["unfit"].get(reason, 0) for one in results}}
        for reason in reasons
    ]


@click.command("list")
@click.option("--pool", help="a pool's name; default: all pools, one after the other")
@click.option("--tenant", help="a tenant's slug")
@limits(QUEUE)
@output_options
@pass_invocation
def list_queue(invocation: Invocation, *, pool: str | None, tenant: str | None, everything: bool, limit: int) -> None:
    """List queued claims with their expected start and the reason why they wait, next first.

    Example: gpucloud queue list --pool default
    """
    with invocation.api() as api:
        pools = [pool] if pool else [row["name"] for row in reversed(list(api.rows("pools/")))]
        most = 0 if everything else limit
        rows = [{"pool": name, **row} for name in pools for row in _of_pool(api, name, tenant, most)]
        if not rows:
            refuse_unknown(api, {"tenant": tenant})
    invocation.show(rows if invocation.structured else [_line(row) for row in rows], columns=WAITING, wide=WIDE)


def _of_pool(api: Api, pool: str, tenant: str | None, limit: int) -> list[dict[str, Any]]:
    return first(api.rows, path_of(QUEUE, pool), limit, tenant=tenant)


def _line(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row for people: the expected start, and the first reason."""
    estimate, reasons = row.get("estimate") or {}, row["reasons"]
    return {**row, "starts": estimate.get("at"), "reason": reasons[0]["detail"] if reasons else None}


COMMANDS = {"pool": (rebalance, consolidate, fair_share, what_if), "queue": (list_queue,)}
