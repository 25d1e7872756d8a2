"""Resources of the API: one table from which the commands are built.

A new resource of the API is a new entry here. A test compares every name with docs/openapi.yaml.
"""

from dataclasses import dataclass

import click

from gpucloud_cli.amounts import AGO, AMOUNT, DURATION, IN, OrNull, Words
from gpucloud_cli.fields import (
    AUDIT,
    FAILOVER,
    IDLE_RULES,
    LIMIT,
    LIMITED,
    NODE,
    PLACEMENT,
    POLICIES,
    POOL,
    POOL_OR_ALL,
    REBALANCING,
    REQUESTED,
    RESERVED_FIELDS,
    RESOURCES,
    ROLES,
    TENANT,
    Field,
)

ALL = frozenset({"list", "show", "create", "change", "remove"})
SHARE = ("gpu_count", "core_request", "memory_mib")
CLAIM_COLUMNS = ("uid", "tenant", "name", "state", "assignments.node", *SHARE, "core_limit", "created_by")


@dataclass(frozen=True)
class Resource:
    """One collection of the API and its commands."""

    name: str
    path: str
    key: str
    columns: tuple[str, ...]
    fields: tuple[Field, ...] = ()
    filters: tuple[Field, ...] = ()
    verbs: frozenset[str] = frozenset({"list", "show"})
    # The parent in the path, such as a member's tenant.
    parent: str | None = None
    # True if changes can be previewed (`?dry_run=true`).
    previews: bool = False
    order: str = "newest first"
    # Columns of `-o wide` beside the others.
    wide: tuple[str, ...] = ()
    # True if released rows stay as history, which a list leaves out.
    history: bool = False


TABLE = (
    Resource(
        "tenant",
        "tenants/",
        "slug",
        ("slug", "name", "weight", "cohort"),
        wide=("created_at", "version"),
        fields=(
            Field("slug", argument=True, required=True, changes=False),
            Field("name", help="a display name"),
            Field("weight", click.INT, "its share relative to other tenants"),
            Field("cohort", OrNull(click.STRING), "the cohort to borrow unused quota from; or none"),
        ),
        verbs=ALL,
    ),
    Resource(
        "member",
        "tenants/{parent}/members/",
        "username",
        ("username", "role"),
        fields=(
            Field("username", argument=True, required=True, changes=False),
            Field("role", ROLES, "the role in the tenant", required=True),
        ),
        verbs=frozenset({"list", "create", "remove"}),
        parent="tenant",
    ),
    Resource(
        "quota",
        "quotas/",
        "id",
        ("id", "tenant", "pool", "resource", "hard", "used", "borrowed"),
        wide=("borrowing_limit", "lending_limit", "version"),
        fields=(
            Field("tenant", help="a tenant's slug", required=True, changes=False),
            POOL_OR_ALL,
            Field("resource", RESOURCES, "the resource", required=True, changes=False),
            Field("hard", LIMIT, "the limit; memory also as 64GiB", required=True),
            Field("borrowing_limit", LIMIT, "the most to borrow of the cohort's unused quota", flag="--borrowing"),
            Field("lending_limit", LIMIT, "the most of its unused part that the cohort may borrow", flag="--lending"),
        ),
        filters=(TENANT, POOL, Field("resource", RESOURCES, "the resource")),
        verbs=ALL,
        previews=True,
    ),
    Resource(
        "quota-request",
        "quota-requests/",
        "uid",
        ("uid", "tenant", "pool", "resource", "period", "amount", "until", "state", "reason", "created_by"),
        fields=(
            Field("tenant", help="a tenant's slug", required=True),
            POOL_OR_ALL,
            Field("resource", REQUESTED, "the resource; gpu_hours: a budget", required=True),
            Field("period", click.Choice(["month", "week"]), "the budget's, with gpu_hours"),
            Field("amount", AMOUNT, "the additional amount; memory also as 64GiB", required=True),
            Field("until", IN, "a time in ISO 8601, or like 7d from now; default: permanent"),
            Field("reason", help="the reason, for the operator", required=True),
        ),
        filters=(TENANT, POOL, Field("resource", REQUESTED, "the resource"), Field("state", help="a state")),
        verbs=frozenset({"list", "show", "create"}),
    ),
    Resource(
        "limit-range",
        "limit-ranges/",
        "id",
        ("id", "tenant", "pool", "field", "minimum", "maximum", "default"),
        fields=(
            Field("tenant", help="a tenant's slug", required=True, changes=False),
            POOL_OR_ALL,
            Field("field", LIMITED, "the field of a claim", required=True, changes=False),
            Field("minimum", OrNull(AMOUNT), "the least, like 8GiB or 2h; or none"),
            Field("maximum", OrNull(AMOUNT), "the most, like 8GiB or 2h; or none"),
            Field("default", OrNull(AMOUNT), "the value of claims that do not set it; or none"),
        ),
        filters=(TENANT, POOL),
        verbs=ALL,
    ),
    Resource(
        "member-limit",
        "member-limits/",
        "id",
        ("id", "tenant", "member", "resource", "hard"),
        fields=(
            Field("tenant", help="a tenant's slug", required=True, changes=False),
            Field(
                "member",
                OrNull(click.STRING, "each"),
                "a username; default: every other member",
                changes=False,
            ),
            Field("resource", RESOURCES, "the resource", required=True, changes=False),
            Field("hard", LIMIT, "the limit; memory also as 64GiB", required=True),
        ),
        filters=(TENANT, Field("member", help="a username"), Field("resource", RESOURCES, "the resource")),
        verbs=ALL,
    ),
    Resource(
        "pool",
        "pools/",
        "name",
        ("name", "sharing_policy", "placement_policy", "core_ceiling", "rebalance_mode", "description"),
        wide=("patience_seconds", "idle_rule", "idle_seconds", "failover_policy", "audit_policy", "repair_drift"),
        fields=(
            Field("name", argument=True, required=True, changes=False),
            Field("description", help="a description"),
            Field("sharing_policy", POLICIES, "how claims share a GPU under contention", flag="--policy"),
            Field("core_ceiling", click.INT, "the most of each GPU, in percent, that its claims may use together"),
            Field("parts", click.INT, "parts of each GPU, for the policy average"),
            Field("placement_policy", PLACEMENT, "how to choose among GPUs that fit a claim", flag="--placement"),
            Field(
                "core_overcommit_percent",
                OrNull(click.INT),
                "bound of quotas, in percent of its core; or none",
            ),
            Field(
                "memory_overcommit_percent",
                OrNull(click.INT),
                "bound of quotas, in percent of its memory; or none",
            ),
            Field("audit_policy", AUDIT, "the action on GPU processes that bypass their limits", flag="--audit"),
            Field("repair_drift", click.BOOL, "undo manual changes on its machines at once"),
            Field("lend_reserved", click.BOOL, "lend reserved capacity to best-effort claims until it is needed"),
            Field("reclaim_idle", click.BOOL, "release idle reservations, not only report them"),
            Field(
                "preemption_grace_seconds",
                OrNull(DURATION),
                "the grace of preempted borrowers, like 2m; or none",
                flag="--preemption-grace",
            ),
            Field(
                "preempt_by_priority",
                click.BOOL,
                "let a tenant's claims preempt its lower priorities",
            ),
            Field(
                "patience_seconds",
                OrNull(DURATION),
                "order claims by age, not by share, after this wait, like 4h; or none",
                flag="--patience",
            ),
            Field("idle_rule", IDLE_RULES, "the action on idle claims"),
            Field("idle_seconds", DURATION, "the time without use after which a claim is idle", flag="--idle-after"),
            Field(
                "unused_seconds",
                OrNull(DURATION),
                "release claims after this time without a program; or none",
                flag="--unused-after",
            ),
            Field("failover_policy", FAILOVER, "treatment of claims on a lost node"),
            Field(
                "failover_after_seconds",
                DURATION,
                "the time from a lost node's last heartbeat to its failover",
                flag="--failover-after",
            ),
            Field(
                "idle_grace_seconds",
                DURATION,
                "the time from an idle claim's warning to its release",
                flag="--idle-grace",
            ),
            Field("rebalance_mode", REBALANCING, "what the rebalancer may do"),
            Field("rebalance_policy", click.Choice(["feedback", "percentile", "cron"]), "the rebalancer's policy"),
        ),
        verbs=frozenset({"list", "show", "create", "change"}),
    ),
    Resource(
        "node",
        "nodes/",
        "name",
        ("name", "pool", "state", "hostname", "agent_version", "last_seen_at"),
        wide=("driver_version", "cordoned", "unhealthy", "drifted", "labels"),
        fields=(
            Field("labels", Words(none=True), "all labels for selectors, like zone=a,net=ib; '' for none"),
            Field("repair_drift", click.BOOL, "undo manual changes on the machine at once"),
        ),
        filters=(POOL,),
        verbs=frozenset({"list", "show", "change"}),
    ),
    Resource(
        "gpu",
        "gpus/",
        "uuid",
        ("uuid", "node", "index", "model", "state", "core_used", "core_free", "memory_used_mib", "memory_mib"),
        wide=("pool", "memory_free_mib", "present", "unhealthy"),
        filters=(NODE, POOL, Field("model", help="the model's name in NVML")),
    ),
    Resource(
        "claim",
        "claims/",
        "uid",
        CLAIM_COLUMNS,
        wide=("pool", "class", "priority", "time_limit_seconds", "created_at"),
        history=True,
        filters=(TENANT, POOL, NODE, Field("state", help="a state"), Field("name", help="an exact name")),
    ),
    Resource(
        "assignment",
        "assignments/",
        "uid",
        ("uid", "claim", "node", "gpu_index", "core_request", "core_limit", "memory_mib", "state"),
        wide=("gpu_uuid", "generation", "observed_generation", "in_force_at", "reason"),
        history=True,
        filters=(TENANT, NODE, Field("claim", help="a claim's name or UID"), Field("gpu", help="a GPU's uuid")),
    ),
    Resource(
        "reservation",
        "reservations/",
        "uid",
        ("uid", "tenant", "name", "state", "start_at", "end_at", *SHARE, "created_by"),
        wide=("pool", "gpu_model", "grace_seconds", "created_at"),
        fields=RESERVED_FIELDS,
        filters=(TENANT, POOL, Field("state", help="a state"), Field("series", help="a weekly series' uid")),
        verbs=frozenset({"list", "show", "change"}),
    ),
    Resource(
        "proposal",
        "proposals/",
        "uid",
        ("uid", "tenant", "claim_name", "kind", "state", "explanation"),
        wide=("claim", "pool", "created_at"),
        filters=(
            TENANT,
            POOL,
            Field("claim", help="a claim's name or UID"),
            Field("kind", click.Choice(["lend", "give-back", "limit", "resize"]), "the kind of change"),
            Field("state", help="a state"),
        ),
    ),
    Resource(
        "budget",
        "budgets/",
        "id",
        ("id", "tenant", "period", "gpu_hours", "starts_at", "ends_at"),
        fields=(
            Field("tenant", help="a tenant's slug", required=True, changes=False),
            Field("period", click.Choice(["month", "week", "custom"]), "the period", required=True, changes=False),
            Field("starts_at", IN, "a time in ISO 8601, or like 7d from now, for a custom period", changes=False),
            Field("ends_at", IN, "a time in ISO 8601, or like 7d from now, for a custom period", changes=False),
            Field("gpu_hours", help="GPU-hours, like 1500 or 0.5", required=True),
        ),
        filters=(TENANT,),
        verbs=ALL,
    ),
    Resource(
        "price",
        "prices/",
        "id",
        ("id", "gpu_model", "pool", "per_gpu_hour", "currency", "valid_from"),
        fields=(
            Field("gpu_model", help="the model's name in NVML", required=True),
            Field("pool", help="the pool; default: all pools"),
            Field("per_gpu_hour", help="the price, a decimal number", required=True),
            Field("valid_from", help="the first day, like 2026-07-01", required=True),
        ),
        filters=(POOL, Field("gpu_model", help="the model's name in NVML")),
        verbs=frozenset({"list", "show", "create", "remove"}),
    ),
    Resource(
        "user",
        "users/",
        "username",
        ("username", "email", "active", "operator", "roles", "last_seen_at"),
        filters=(
            TENANT,
            Field("active", click.BOOL, "true: active users only"),
            Field("operator", click.BOOL, "true: operators only"),
        ),
    ),
    Resource(
        "invitation",
        "invitations/",
        "uid",
        ("uid", "username", "email", "tenant", "role", "operator", "state", "created_by", "expires_at"),
        filters=(TENANT,),
        verbs=frozenset({"list", "show", "remove"}),
    ),
    Resource(
        "token",
        "tokens/",
        "key",
        ("key", "name", "owner", "tenant", "role", "expires_at", "last_used_at", "revoked_at"),
    ),
    Resource(
        "webhook",
        "webhooks/",
        "uid",
        ("uid", "tenant", "url", "events", "enabled", "failing_since"),
        fields=(
            Field("tenant", help="a tenant's slug; default: the whole platform (operators)", changes=False),
            Field("url", help="the https:// address of the receiver", flag="--to", required=True),
            Field("events", help="an event like claim.active; repeatable", flag="--event", required=True, many=True),
            Field("description", help="a description"),
            Field("enabled", click.BOOL, "false: send nothing; true: send again"),
        ),
        filters=(TENANT,),
        verbs=ALL,
    ),
    Resource(
        "queue",
        "pools/{parent}/queue/",
        "claim",
        ("position", "claim", "tenant", "name", "priority", "gpu_count", "core_request", "memory_mib"),
        filters=(TENANT,),
        verbs=frozenset({"list"}),
        parent="pool",
        order="next first",
    ),
    Resource(
        "audit",
        "audit/",
        "id",
        ("at", "actor", "action", "object_type", "object_id"),
        filters=(
            TENANT,
            Field("actor", help="the user or service"),
            Field("action", help="an action, like claim.create"),
            Field("object_type", help="a type, like claim"),
            Field("object_id", help="an id, like a claim's uid"),
            Field("since", AGO, "a time in ISO 8601, or a duration before now, like 2h"),
            Field("until", AGO, "a time in ISO 8601, or a duration before now"),
        ),
        verbs=frozenset({"list"}),
    ),
)
BY_NAME = {resource.name: resource for resource in TABLE}
