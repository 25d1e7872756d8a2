"""`claim describe`: one claim for people."""

from collections.abc import Iterator
from typing import Any

import click

from gpucloud_cli import claiming, sheets
from gpucloud_cli.addressing import find_claim
from gpucloud_cli.options import Invocation, connection_options, pass_invocation
from gpucloud_cli.related import Row, print_events, read
from gpucloud_cli.sheets import moment, percent, size, span


@click.command()
@click.argument("name", metavar="CLAIM")
@connection_options
@pass_invocation
def claim(invocation: Invocation, name: str) -> None:
    """Describe a claim: its size, GPUs, use, conditions, the reasons why it waits, and events.

    Example: gpucloud claim describe train
    """
    with invocation.api() as api:
        found = api.get(claiming.path_of(find_claim(api, name))).body
        _claim_head(found)
        _claim_places(found, read(api, "utilization/", claim=found["uid"], of="series"))
        sheets.rows("Conditions", ("type", "status", "since", "message"), _claim_conditions(found))
        sheets.items("Reasons", (reason["detail"] for reason in found["reasons"]))
        sheets.items("Suggestions", (item["detail"] for item in found["suggestions"]))
        states = [(step["at"], "-", f"state: {step['state']}") for step in found["timeline"]]
        print_events(states, read(api, "audit/", object_type="claim", object_id=found["uid"]))


def _claim_head(found: Row) -> None:
    place = f", {' '.join(claiming.place(found))}" if found["queue_position"] else ""
    sheets.section(
        "",
        {
            "Name": found["name"],
            "UID": found["uid"],
            "Tenant": found["tenant"],
            "Pool": found["pool"],
            "State": f"{found['state'] if found['reachable'] is not False else 'unknown'}{place}",
            "Expected start": moment(found["estimated_start_at"]),
            "Created": f"{moment(found['created_at'])} by {found['created_by']}",
            "Lease expires": moment(found["lease_until"]),
            "Released": moment(found["released_at"]),
        },
    )
    labels = {name.replace("_", " ").capitalize(): found[name] for name in ("affinity", "anti_affinity", "exclusion")}
    sheets.section(
        "Request",
        {
            "GPUs": found["gpu_count"],
            "GPU model": found["gpu_model"],
            "Core": f"{found['core_request']} % guaranteed, {found['core_limit']} % at most, of each GPU",
            "Memory": f"{size(found['memory_mib'])} of each GPU",
            "Class": found["class"],
            "Priority": found["priority"],
            "Time limit": span(found["time_limit_seconds"]),
            "Earliest start": moment(found["start_at"]),
            "Group": found["group"] and f"{found['group']}, {found['group_size']} claims",
            "Reservation": found["reservation"],
            "Node labels": ", ".join(f"{name}={value}" for name, value in found["node_selector"].items()) or None,
            **labels,
        },
    )


def _claim_places(found: Row, series: list[Row]) -> None:
    use = {one["assignment"]: one for one in series}
    sheets.rows(
        "GPUs",
        ("node", "gpu", "core", "core used", "memory", "memory used", "state", "since"),
        (
            (
                item["node"],
                item["gpu_index"],
                f"{item['core_request']}–{item['core_limit']} %",
                percent(_latest(use.get(item["uid"]), "core_percent")),
                size(item["memory_mib"]),
                size(_latest(use.get(item["uid"]), "memory_mib")),
                item["state"],
                sheets.age(item["in_force_at"]),
            )
            for item in found["assignments"]
        ),
    )


def _latest(series: Row | None, name: str) -> int | None:
    value = series[name][-1] if series and series[name] else None
    return None if value is None else round(value)


def _claim_conditions(found: Row) -> Iterator[tuple[Any, ...]]:
    placed, applied = found["assigned_at"], found["observed_generation"] >= found["generation"]
    yield "Scheduled", placed is not None, sheets.age(placed), None if placed else claiming.why(found)
    generations = f"generation {found['observed_generation']} of {found['generation']}"
    yield "Applied", found["state"] == "active" and applied, None, generations
    if found["reachable"] is not None:
        since = sheets.age(found["unreachable_since"])
        yield "Reachable", found["reachable"], since, None if found["reachable"] else "no heartbeat of its node"
    if found["idle_since"]:
        release = found["idle_release_at"]
        message = f"released at {moment(release)}" if release else found["idle_reason"]
        yield "Idle", True, sheets.age(found["idle_since"]), message
    for name, words in {"preempt_at": "Preempted", "yields_at": "Yields"}.items():
        if found[name]:
            yield words, True, None, f"ends at {moment(found[name])}"
