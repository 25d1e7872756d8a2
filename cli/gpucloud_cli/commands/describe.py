"""`claim|node|pool|tenant describe`: one object and what belongs to it, for people."""

import click

from gpucloud_cli import sheets
from gpucloud_cli.api import Api
from gpucloud_cli.commands.describe_claim import claim
from gpucloud_cli.options import Invocation, connection_options, pass_invocation
from gpucloud_cli.related import Row, print_events, read
from gpucloud_cli.resources import BY_NAME
from gpucloud_cli.sheets import amount, moment, percent, size, span
from gpucloud_cli.verbs import path_of

CLAIMS = 20
CONDITIONS = ("type", "status", "reason", "since", "message")
RANGE = ("minimum", "maximum", "default")


def join(root: click.Group) -> None:
    """Add the commands to the tree."""
    for name, command in {"claim": claim, "node": node, "pool": pool, "tenant": tenant}.items():
        group = root.commands[name]
        assert isinstance(group, click.Group)
        group.add_command(command, "describe")


@click.command()
@click.argument("name")
@connection_options
@pass_invocation
def node(invocation: Invocation, name: str) -> None:
    """Describe a node: its conditions, GPUs, claims, failed checks and events.

    Example: gpucloud node describe gpu-7
    """
    with invocation.api() as api:
        found = api.get(path_of(BY_NAME["node"], None, name)).body
        sheets.section(
            "",
            {
                "Name": found["name"],
                "Pool": found["pool"],
                "State": found["state"],
                "Host": found["hostname"] or None,
                "Agent": found["agent_version"] or None,
                "Driver": found["driver_version"] or None,
                "Labels": ", ".join(f"{key}={value}" for key, value in found["labels"].items()) or sheets.NONE,
                "Last heartbeat": moment(found["last_seen_at"]),
                "Draining since": moment(found["draining_at"]),
                "Fenced": found["fenced_at"] and f"{moment(found['fenced_at'])}: {found['fenced_why']}",
                "Unhealthy": found["unhealthy"] or None,
                "Drift": f"{found['drifted']} changes" if found["drifted"] else None,
                "Added": moment(found["created_at"]),
            },
        )
        _conditions(found["conditions"])
        gpus = sorted(read(api, "gpus/", node=found["name"]), key=lambda gpu: gpu["index"])
        _gpus(gpus)
        sheets.rows(
            "Claims",
            ("claim", "gpu", "core", "memory", "state", "since"),
            (
                (
                    item["claim"],
                    item["gpu_index"],
                    f"{item['core_request']}–{item['core_limit']} %",
                    size(item["memory_mib"]),
                    item["state"],
                    sheets.age(item["created_at"]),
                )
                for item in read(api, "assignments/", most=CLAIMS, node=found["name"], live=True)
            ),
        )
        wrong = [one for one in found["checks"] if one["state"] != "ok"]
        sheets.items("Checks", (f"{one['name']} ({one['state']}): {one['detail']} {one['cure']}" for one in wrong))
        print_events([], read(api, "audit/", object_type="node", object_id=found["name"]))


def _conditions(conditions: list[Row]) -> None:
    sheets.rows(
        "Conditions",
        CONDITIONS,
        (
            (one["type"], one["status"], one["reason"], sheets.age(one["since"]), one["message"] or "-")
            for one in conditions
        ),
    )


def _gpus(gpus: list[Row]) -> None:
    sheets.rows(
        "GPUs",
        ("index", "model", "core allocated", "memory allocated", "health"),
        (
            (
                gpu["index"],
                gpu["model"],
                f"{gpu['core_used']} %",
                f"{size(gpu['memory_used_mib'])} of {size(gpu['memory_mib'])}",
                gpu["unhealthy"] or ("healthy" if gpu["present"] else "not present"),
            )
            for gpu in gpus
        ),
    )


@click.command()
@click.argument("name")
@connection_options
@pass_invocation
def pool(invocation: Invocation, name: str) -> None:
    """Describe a pool: its policies, capacity, nodes, queue and events.

    Example: gpucloud pool describe default
    """
    with invocation.api() as api:
        found = api.get(path_of(BY_NAME["pool"], None, name)).body
        sheets.section(
            "", {"Name": found["name"], "Description": found["description"], "Created": moment(found["created_at"])}
        )
        _pool_policies(found)
        gpus = [gpu for gpu in read(api, "gpus/", most=None, pool=name) if gpu["present"]]
        total = 100 * len(gpus)
        sheets.section(
            "Capacity",
            {
                "GPUs": len(gpus),
                "Core": f"{sum(gpu['core_used'] for gpu in gpus)} of {total} % allocated",
                "Memory": f"{size(sum(gpu['memory_used_mib'] for gpu in gpus))} of "
                f"{size(sum(gpu['memory_mib'] for gpu in gpus))} allocated",
            },
        )
        nodes = read(api, "nodes/", most=None, pool=name)
        sheets.rows(
            "Nodes",
            ("name", "state", "agent", "heartbeat"),
            ((one["name"], one["state"], one["agent_version"], sheets.age(one["last_seen_at"])) for one in nodes),
        )
        waiting = read(api, path_of(BY_NAME["queue"], name), most=CLAIMS)
        sheets.rows(
            "Queue",
            ("position", "claim", "tenant", "name", "waits", "reason"),
            (
                (row["position"], row["claim"], row["tenant"], row["name"], sheets.age(row["created_at"]), _why(row))
                for row in waiting
            ),
        )
        print_events([], read(api, "audit/", object_type="pool", object_id=name))


def _why(row: Row) -> str | None:
    return row["reasons"][0]["detail"] if row["reasons"] else None


def _pool_policies(found: Row) -> None:
    sheets.section(
        "Policies",
        {
            "Sharing": found["sharing_policy"],
            "Placement": found["placement_policy"],
            "Core ceiling": f"{found['core_ceiling']} % of each GPU",
            "Overcommit": f"core {percent(found['core_overcommit_percent']) or 'unlimited'}, "
            f"memory {percent(found['memory_overcommit_percent']) or 'unlimited'}",
            "Preemption grace": span(found["preemption_grace_seconds"]),
            "Patience": span(found["patience_seconds"]),
            "Idle claims": f"{found['idle_rule']} after {span(found['idle_seconds'])}, "
            f"grace {span(found['idle_grace_seconds'])}",
            "Unused claims": found["unused_seconds"] and f"released after {span(found['unused_seconds'])}",
            "Lost nodes": f"{found['failover_policy']}, {span(found['failover_after_seconds'])} after the last "
            "heartbeat",
            "Rebalancing": f"{found['rebalance_mode']}, by {found['rebalance_policy']}",
            "Audit": found["audit_policy"],
            "Drift": "repaired at once" if found["repair_drift"] else "reported",
        },
    )


@click.command()
@click.argument("slug")
@connection_options
@pass_invocation
def tenant(invocation: Invocation, slug: str) -> None:
    """Describe a tenant: its quotas, limits, members, budgets, live claims and events.

    Example: gpucloud tenant describe vision
    """
    with invocation.api() as api:
        found = api.get(path_of(BY_NAME["tenant"], None, slug)).body
        sheets.section(
            "",
            {
                "Slug": found["slug"],
                "Name": found["name"],
                "Weight": found["weight"],
                "Cohort": found["cohort"],
                "Created": moment(found["created_at"]),
            },
        )
        _quotas(read(api, "quotas/", most=None, tenant=slug))
        _limits(api, slug)
        members = read(api, path_of(BY_NAME["member"], slug), most=None)
        sheets.rows("Members", ("username", "role"), ((one["username"], one["role"]) for one in members))
        _budgets(read(api, "budgets/", tenant=slug))
        sheets.rows(
            "Live claims",
            ("name", "uid", "state", "gpus", "core", "memory", "age"),
            (
                (
                    row["name"],
                    row["uid"],
                    row["state"],
                    row["gpu_count"],
                    f"{row['core_request']}–{row['core_limit']} %",
                    size(row["memory_mib"]),
                    sheets.age(row["created_at"]),
                )
                for row in read(api, "claims/", most=CLAIMS, tenant=slug, live=True)
            ),
        )
        kinds = ("tenant", "quota", "member", "limit-range", "member-limit", "budget")
        print_events([], [row for kind in kinds for row in read(api, "audit/", tenant=slug, object_type=kind)])


def _quotas(quotas: list[Row]) -> None:
    sheets.rows(
        "Quotas",
        ("resource", "pool", "limit", "used", "borrowed", "lent", "free"),
        (
            (
                row["resource"],
                row["pool"] or "all pools",
                amount(row["resource"], row["hard"]),
                *(amount(row["resource"], row[name]) for name in ("used", "borrowed", "lent", "free")),
            )
            for row in quotas
        ),
    )


def _limits(api: Api, slug: str) -> None:
    def text(field: str, value: int | None) -> str:
        return "-" if value is None else {"time_limit_seconds": sheets.span(value)}.get(field) or amount(field, value)

    ranges = read(api, "limit-ranges/", tenant=slug)
    lines = [
        (row["field"], row["pool"] or "all pools", *(text(row["field"], row[name]) for name in RANGE)) for row in ranges
    ]
    if lines:
        sheets.rows("Limits of a claim", ("field", "pool", *RANGE), lines)
    if members := read(api, "member-limits/", tenant=slug):
        sheets.rows(
            "Limits of a member",
            ("member", "resource", "limit"),
            ((row["member"] or "each", row["resource"], amount(row["resource"], row["hard"])) for row in members),
        )


def _budgets(budgets: list[Row]) -> None:
    if budgets:
        sheets.rows(
            "Budgets",
            ("period", "GPU-hours", "spent", "ends"),
            (
                (
                    row["period"],
                    row["gpu_hours"],
                    row["current"] and f"{row['current']['gpu_hours_spent']} ({row['current']['percent']} %)",
                    row["current"] and moment(row["current"]["ends_at"]),
                )
                for row in budgets
            ),
        )
