"""`claim|node|pool|tenant describe`: an object and what belongs to it, for people."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import click

from gpucloud_cli import claiming, sheets
from gpucloud_cli.addressing import find_claim
from gpucloud_cli.amounts import size_text
from gpucloud_cli.api import Api
from gpucloud_cli.failures import Problem
from gpucloud_cli.nouns import WORDING
from gpucloud_cli.options import Invocation, connection_options, pass_invocation
from gpucloud_cli.resources import BY_NAME
from gpucloud_cli.verbs import path_of

Row = dict[str, Any]
MOST_EVENTS = 12


@dataclass(frozen=True)
class Part:
    """A table: a list within the object, or rows of another resource that belong to it."""

    title: str
    source: str
    columns: str


@dataclass(frozen=True)
class Sheet:
    """A description: sections of facts, tables, and the types of objects whose changes are its events."""

    facts: dict[str, str]
    parts: tuple[Part, ...]
    more: Callable[[Api, Row], Row] = lambda _api, _found: {}
    events: tuple[str, ...] = ()


def _command(kind: str) -> click.Command:
    resource, sheet = BY_NAME[kind], SHEETS[kind]
    words = f"Describe {WORDING[kind].noun}: {', '.join(part.title for part in sheet.parts)} and events."

    @click.command("describe", help=f"{words}\n\nExample: gpucloud {kind} describe {WORDING[kind].key}")
    @click.argument("key", metavar="CLAIM" if kind == "claim" else resource.key.upper())
    @connection_options
    @pass_invocation
    def command(invocation: Invocation, /, key: str) -> None:
        with invocation.api() as api:
            key = find_claim(api, key) if kind == "claim" else key
            found = api.get(path_of(resource, None, key)).body
            found |= sheet.more(api, found)
            for title, names in sheet.facts.items():
                sheets.section(title, found, names.split())
            for part in sheet.parts:
                sheets.table(part.title, _rows(api, part, kind, key, found), part.columns.split())
            sheets.table("Events", _events(api, kind, found), ["at", "actor", "event"])

    return command


def _rows(api: Api, part: Part, kind: str, key: str, found: Row) -> list[Row]:
    if part.source in found:
        return list(found[part.source])
    resource = BY_NAME[part.source]
    wanted = ({} if resource.parent else {kind: key}) | ({"live": True} if resource.history else {})
    rows = _read(api, path_of(resource, key), most=sheets.MOST_ROWS + 1, **wanted)
    return sorted(rows, key=lambda row: row.get("index", 0))


def _read(api: Api, path: str, **wanted: Any) -> list[Row]:
    """Return rows; none where the token may not read them."""
    try:
        return list(api.rows(path, **wanted))
    except Problem as problem:
        if problem.status == 403:
            return []
        raise


def _events(api: Api, kind: str, found: Row) -> list[Row]:
    """Return the claim's states, and the audited changes that the caller may see, oldest first."""
    states = [{"at": step["at"], "actor": None, "event": step["state"]} for step in found.get("timeline", ())]
    about: Row = {"tenant": found["slug"]} if kind == "tenant" else {"object_id": found[BY_NAME[kind].key]}
    for one in SHEETS[kind].events or (kind,):
        rows = _read(api, "audit/", most=MOST_EVENTS, object_type=one, **about)
        states += ({"at": row["at"], "actor": row["actor"], "event": _change(row)} for row in rows)
    return sorted(states, key=lambda row: sheets.parse(row["at"]))[-MOST_EVENTS:]


def _change(row: Row) -> str:
    """Return an audited change: the action, and the values that it changed."""
    before, after = row["before"] or {}, row["after"] or {}
    changed = [
        f"{name}: {before[name]} → {value}" for name, value in after.items() if name in before and before[name] != value
    ]
    return " ".join([row["action"], *([f"({', '.join(changed)})"] if changed else [])])


def _of_claim(api: Api, found: Row) -> Row:
    """Return a claim's conditions, and its assignments with their latest measurements."""
    series = api.get("utilization/", claim=found["uid"]).body["series"]
    use = {one["assignment"]: one for one in series}
    return {
        **_remote(api, found),
        "state": "unknown" if found["reachable"] is False else found["state"],
        "queue": ", ".join(claiming.place(found)) if found["queue_position"] else None,
        "conditions": [dict(zip(CONDITION, row, strict=True)) for row in _conditions(found)],
        "assignments": [
            {**row, **{f"used_{name}": _latest(use.get(row["uid"]), name) for name in ("core_percent", "memory_mib")}}
            for row in found["assignments"]
        ],
        "borrowed": [_borrowed(row, use[row["uid"]]) for row in found["assignments"] if _has_borrowed(use, row)],
    }


def _has_borrowed(use: dict[str, Row], row: Row) -> bool:
    return bool(use.get(row["uid"], {}).get("borrowed_mib"))


def _borrowed(row: Row, series: Row) -> Row:
    """Return what an assignment borrows, by its latest measurement."""
    return {
        **{name: row[name] for name in ("node", "gpu_index")},
        "promised_mib": row["memory_mib"],
        "borrowed_memory_mib": _latest(series, "borrowed_mib"),
        "in_host_memory_mib": _latest(series, "memory_out_mib"),
        "moved_a_second_mib": _latest(series, "moved_mib_per_second"),
        "stood_still_percent": _latest(series, "stood_percent"),
    }


def _remote(api: Api, found: Row) -> Row:
    """Return what the claim's clients on other machines move now, in words."""
    # An older server has neither the field nor the figures.
    if not found["assignments"] or found.get("remote", "never") == "never":
        return {}
    try:
        used = api.get(f"claims/{found['uid']}/remote/").body
    except Problem:
        return {}
    if not used["connections"]:
        return {}
    there, back = (used[f"{name}_bytes_per_second"] / 1e6 for name in ("received", "sent"))
    trip = "" if used["trip_ms"] is None else f", {used['trip_ms']:.1f} ms there and back"
    moved = f"{there:.1f} MB/s to the node, {back:.1f} MB/s back, {used['round_trips_per_second']:.0f} round trips/s"
    return {"remote_clients": f"{used['connections']} connections, {moved}{trip}"}


def _latest(series: Row | None, name: str) -> int | None:
    value = series[name][-1] if series and series[name] else None
    return None if value is None else round(value)


CONDITION = ("type", "status", "since", "message")
MEASURED = {"below-guarantee": "BelowGuarantee", "memory-out": "MemoryOut"}


def _conditions(found: Row) -> Iterator[tuple[Any, ...]]:
    placed, applied = found["assigned_at"], found["observed_generation"] >= found["generation"]
    yield "Scheduled", placed is not None, placed, None if placed else claiming.why(found)
    generations = f"generation {found['observed_generation']} of {found['generation']}"
    # A suspended claim is as its node was told, too: without GPUs.
    yield "Applied", found["state"] in ("active", "suspended") and applied, None, generations
    if (reachable := found["reachable"]) is not None:
        yield "Reachable", reachable, found["unreachable_since"], None if reachable else "no heartbeat of its node"
    if found["idle_since"]:
        release = found["idle_release_at"]
        yield "Idle", True, found["idle_since"], f"released {sheets.age(release)}" if release else found["idle_reason"]
    if rotation := found["rotation"]:
        place = "in" if rotation["place"] == 0 else f"out, place {rotation['place']}"
        change = f", changes {sheets.age(rotation['changes_at'])}" if rotation["changes_at"] else ""
        yield "Rotates", True, None, f"{place}{change}, had {rotation['served_gpu_seconds'] or 0} GPU-seconds"
    if profile := found["pack_profile"]:
        kept, alone = profile["kept_percent"], f"{profile['launches']:.0f} launches a second alone"
        yield "Packed", kept is not None, None, alone if kept is None else f"keeps {kept:.0f} % of {alone}"
    for one in found["conditions"]:
        if one["type"] in MEASURED:
            yield MEASURED[one["type"]], True, one["since"], one["detail"]
    ends = {"preempt_at": ("Preempted", "ends"), "yields_at": ("Yields", "ends")}
    for name, (word, does) in {**ends, "suspends_at": ("ScheduleEnds", "suspended")}.items():
        if found[name]:
            yield word, True, None, f"{does} {sheets.age(found[name])}"


def _of_node(_api: Api, found: Row) -> Row:
    return {"checks": [check for check in found["checks"] if check["state"] != "ok"]}


def _of_pool(api: Api, found: Row) -> Row:
    """Return a pool's capacity."""
    gpus = [gpu for gpu in api.rows("gpus/", pool=found["name"]) if gpu["present"]]
    used, size = (size_text(sum(gpu[name] for gpu in gpus)) for name in ("memory_used_mib", "memory_mib"))
    core = f"{sum(gpu['core_used'] for gpu in gpus)} of {100 * len(gpus)} %"
    return {"gpu_count": len(gpus), "core_allocated": core, "memory_allocated": f"{used} of {size}"}


SHEETS = {
    "claim": Sheet(
        {
            "": "name uid tenant pool state queue remote_clients estimated_start_at created_at created_by lease_until "
            "released_at",
            "Request": "gpu_count gpu_model core_request core_limit memory_mib memory_limit_mib class priority weight "
            "time_limit_seconds start_at group group_size group_most group_uid reservation "
            "node_selector affinity anti_affinity exclusion remote schedule",
        },
        (
            Part(
                "GPUs",
                "assignments",
                "node gpu_index core_request core_limit used_core_percent memory_mib used_memory_mib state in_force_at",
            ),
            Part(
                "borrowed memory",
                "borrowed",
                "node gpu_index promised_mib borrowed_memory_mib in_host_memory_mib moved_a_second_mib "
                "stood_still_percent",
            ),
            Part("conditions", "conditions", " ".join(CONDITION)),
            Part("reasons", "reasons", "detail"),
            Part("suggestions", "suggestions", "detail"),
        ),
        _of_claim,
    ),
    "node": Sheet(
        {
            "": "name pool state hostname agent_version driver_version labels last_seen_at draining_at fenced_at "
            "fenced_why unhealthy drifted created_at"
        },
        (
            Part("conditions", "conditions", "type status reason since message"),
            Part("GPUs", "gpu", "index model core_used memory_used_mib memory_mib present unhealthy"),
            Part("claims", "assignment", "claim gpu_index core_request core_limit memory_mib state created_at"),
            Part("checks", "checks", "name state detail cure"),
        ),
        _of_node,
    ),
    "pool": Sheet(
        {
            "": "name description created_at",
            "Policies": "sharing_policy backend mig mps_group placement_policy core_ceiling core_overcommit_percent "
            "memory_overcommit_percent preemption_grace_seconds preempt_by_priority preempt_by patience_seconds "
            "fair_share half_life_seconds idle_rule idle_seconds idle_grace_seconds unused_seconds oversubscribe "
            "slice_seconds pack_keep_percent default_schedule failover_policy failover_after_seconds "
            "rebalance_mode rebalance_policy audit_policy repair_drift lend_reserved lend_memory reclaim_idle "
            "longest_kernel_ms jobs",
            "Capacity": "gpu_count core_allocated memory_allocated",
        },
        (
            Part("nodes", "node", "name state agent_version last_seen_at"),
            Part("queue", "queue", "position claim tenant name created_at reasons.detail"),
        ),
        _of_pool,
    ),
    "tenant": Sheet(
        {"": "slug name weight cohort created_at"},
        (
            Part("quotas", "quota", "resource pool hard used borrowed lent free"),
            Part("limit ranges", "limit-range", "field pool minimum maximum default"),
            Part("members", "member", "username role"),
            Part("member limits", "member-limit", "member resource hard"),
            Part("budgets", "budget", "period gpu_hours current.gpu_hours_spent current.percent current.ends_at"),
            Part("live claims", "claim", "name uid state gpu_count core_request core_limit memory_mib created_at"),
        ),
        events=("tenant", "quota", "member", "limit-range", "member-limit", "budget"),
    ),
}

COMMANDS = {kind: (_command(kind),) for kind in SHEETS}
