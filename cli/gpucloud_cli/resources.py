"""What there is to list, show, make, change and remove: one table, from which the commands are built.

A new resource of the API is a new entry here. A test compares every name with docs/openapi.yaml.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import click

from gpucloud_cli.amounts import DURATION, SIZE, Mebibytes, OrNull, Words


class Amount(click.ParamType):
    """What a quota counts: a number, or a size where it is memory."""

    name = "amount"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """`400`, or `64GiB` as MiB."""
        return SIZE.convert(value, param, ctx)


def misplaced(wanted: Mapping[str, object], counted: object) -> str | None:
    """Why an amount cannot be one of what is counted (a quota's resource, a limit range's field); None where it can."""
    for name, value in wanted.items():
        if isinstance(value, Mebibytes) and counted != "memory_mib":
            return f"{name} is a size, and {counted} is not counted in sizes"
    return None


LIMIT = OrNull(Amount(), "unlimited")
RESOURCES = click.Choice(["core_percent", "memory_mib", "vgpus", "gpus"])
LIMITED = click.Choice(["core_request", "core_limit", "memory_mib", "gpu_count", "time_limit_seconds"])
ROLES = click.Choice(["admin", "member", "viewer"])
PLACEMENT = click.Choice(["gpucloud", "fgd", "binpack", "spread", "topology", "gpu-admission", "random"])
AUDIT = click.Choice(["warn", "kill", "fence"])
IDLE_RULES = click.Choice(["off", "report", "shrink", "release"])
REBALANCING = click.Choice(["off", "propose", "apply"])
POLICIES = click.Choice(["burst", "fixed", "fair", "weighted", "average", "preempt", "native"])


@dataclass(frozen=True)
class Field:
    """One field that a caller gives: an option, or the argument that names the thing."""

    name: str
    kind: click.ParamType = click.STRING
    help: str = ""
    flag: str | None = None
    argument: bool = False
    required: bool = False
    changes: bool = True
    many: bool = False

    @property
    def option(self) -> str:
        """`--core` for `core_request`, else the field's name with dashes."""
        return self.flag or "--" + self.name.replace("_", "-")


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
    # Named in the path, like a member's tenant.
    parent: str | None = None
    # Whether changes can be previewed (`?dry_run=true`).
    previews: bool = False
    order: str = "newest first"
    # What the API's list and its things are called, for help texts.
    words: str = ""


TENANT = Field("tenant", help="a tenant's slug")
POOL = Field("pool", help="a pool's name")
NODE = Field("node", help="a node's name")
ALL = frozenset({"list", "show", "create", "change", "remove"})
POOL_OR_ALL = Field("pool", OrNull(click.STRING, "all"), "a pool's name; all pools together without it", changes=False)

RESERVED_FIELDS = (
    Field("name", help="for people"),
    Field("start_at", help="a moment, ISO 8601; now unless given", flag="--start"),
    Field("end_at", help="a moment, ISO 8601; its claims end with it", flag="--end"),
    Field("grace_seconds", OrNull(DURATION), "given back when nobody claims for so long; or none", flag="--grace"),
    Field("idle_percent", OrNull(click.IntRange(1, 100)), "reported when its claims use less of its core; or none"),
    Field("idle_seconds", DURATION, "for so long", flag="--idle-for"),
)

TABLE = (
    Resource(
        "tenant",
        "tenants/",
        "slug",
        ("slug", "name", "weight", "cohort"),
        fields=(
            Field("slug", argument=True, required=True, changes=False),
            Field("name", help="for people"),
            Field("weight", click.INT, "its part where tenants compete"),
            Field("cohort", OrNull(click.STRING), "whose unused quota it may borrow, or none"),
        ),
        verbs=ALL,
        words="tenants: who is charged",
    ),
    Resource(
        "member",
        "tenants/{parent}/members/",
        "username",
        ("username", "role"),
        fields=(
            Field("username", argument=True, required=True, changes=False),
            Field("role", ROLES, "what they may do there", required=True),
        ),
        verbs=frozenset({"list", "create", "remove"}),
        parent="tenant",
        words="people in a tenant",
    ),
    Resource(
        "quota",
        "quotas/",
        "id",
        ("id", "tenant", "pool", "resource", "hard", "used", "borrowed"),
        fields=(
            Field("tenant", help="a tenant's slug", required=True, changes=False),
            POOL_OR_ALL,
            Field("resource", RESOURCES, "what is counted", required=True, changes=False),
            Field("hard", LIMIT, "how much; memory also as 64GiB", required=True),
            Field("borrowing_limit", LIMIT, "above hard, of what its cohort leaves idle", flag="--borrowing"),
            Field("lending_limit", LIMIT, "what its cohort may use of the idle part", flag="--lending"),
        ),
        filters=(TENANT, POOL, Field("resource", RESOURCES, "of what")),
        verbs=ALL,
        previews=True,
        words="what tenants may hold",
    ),
    Resource(
        "quota-request",
        "quota-requests/",
        "uid",
        ("uid", "tenant", "pool", "resource", "amount", "until", "state", "reason"),
        fields=(
            Field("tenant", help="a tenant's slug", required=True),
            POOL_OR_ALL,
            Field("resource", RESOURCES, "what is counted", required=True),
            Field("amount", Amount(), "how much more; memory also as 64GiB", required=True),
            Field("until", help="a moment, ISO 8601; for good unless given"),
            Field("reason", help="why, for the operator", required=True),
        ),
        filters=(TENANT, POOL, Field("resource", RESOURCES, "of what"), Field("state", help="one state")),
        verbs=frozenset({"list", "show", "create"}),
        words="requests of tenants for more, and what became of them",
    ),
    Resource(
        "limit-range",
        "limit-ranges/",
        "id",
        ("id", "tenant", "pool", "field", "minimum", "maximum", "default"),
        fields=(
            Field("tenant", help="a tenant's slug", required=True, changes=False),
            POOL_OR_ALL,
            Field("field", LIMITED, "of a claim", required=True, changes=False),
            Field("minimum", OrNull(Amount()), "memory also as 8GiB; or none"),
            Field("maximum", OrNull(Amount()), "memory also as 8GiB; or none"),
            Field("default", OrNull(Amount()), "where a claim does not say it; or none"),
        ),
        filters=(TENANT, POOL),
        verbs=ALL,
        words="what single claims of a tenant may ask for",
    ),
    Resource(
        "member-limit",
        "member-limits/",
        "id",
        ("id", "tenant", "member", "resource", "hard"),
        fields=(
            Field("tenant", help="a tenant's slug", required=True, changes=False),
            Field("member", OrNull(click.STRING, "each"), "a username; each that has none without it", changes=False),
            Field("resource", RESOURCES, "what is counted", required=True, changes=False),
            Field("hard", LIMIT, "how much; memory also as 64GiB", required=True),
        ),
        filters=(TENANT, Field("member", help="a username"), Field("resource", RESOURCES, "of what")),
        verbs=ALL,
        words="what single members may hold of their tenant's quota",
    ),
    Resource(
        "pool",
        "pools/",
        "name",
        ("name", "sharing_policy", "placement_policy", "core_ceiling", "rebalance_mode", "description"),
        fields=(
            Field("name", argument=True, required=True, changes=False),
            Field("description", help="for people"),
            Field("sharing_policy", POLICIES, "what claims get while others want the GPU too", flag="--policy"),
            Field("core_ceiling", click.INT, "percent of each GPU that all its claims may use"),
            Field("parts", click.INT, "for the policy average: parts of each GPU"),
            Field("placement_policy", PLACEMENT, "which GPUs carry a claim where several could", flag="--placement"),
            Field("core_overcommit_percent", OrNull(click.INT), "of its core that quotas may promise; or none"),
            Field("memory_overcommit_percent", OrNull(click.INT), "of its memory that quotas may promise; or none"),
            Field("audit_policy", AUDIT, "what becomes of GPU processes past their limits", flag="--audit"),
            Field("repair_drift", click.BOOL, "put right at once what somebody changes on its machines"),
            Field("lend_reserved", click.BOOL, "best-effort claims may use reserved room until it is needed"),
            Field("reclaim_idle", click.BOOL, "give idle reservations back, not only report them"),
            Field(
                "preemption_grace_seconds", OrNull(click.INT), "before borrowers' claims go back to the queue; or none"
            ),
            Field(
                "preempt_by_priority", click.BOOL, "of one tenant's claims a higher priority may end a lower one's turn"
            ),
            Field("patience_seconds", OrNull(click.INT), "who has waited longer goes by age, before shares; or none"),
            Field("idle_rule", IDLE_RULES, "what becomes of claims that do nothing"),
            Field("idle_seconds", click.INT, "so long a claim must have done nothing"),
            Field("unused_seconds", OrNull(click.INT), "claims without any program for so long are released; or none"),
            Field("idle_grace_seconds", click.INT, "so long before it is released a claim's owner is told"),
            Field("rebalance_mode", REBALANCING, "what the rebalancer may do by itself"),
            Field("rebalance_policy", click.Choice(["feedback", "percentile", "cron"]), "how it judges"),
        ),
        verbs=frozenset({"list", "show", "create", "change"}),
        words="named sets of nodes",
    ),
    Resource(
        "node",
        "nodes/",
        "name",
        ("name", "pool", "state", "hostname", "agent_version", "last_seen_at"),
        fields=(
            Field("labels", Words(none=True), "what claims select by, all anew, like zone=a,net=ib; '' for none"),
            Field("repair_drift", click.BOOL, "put right at once what somebody changes on the machine"),
        ),
        filters=(POOL,),
        verbs=frozenset({"list", "show", "change"}),
        words="machines with an agent",
    ),
    Resource(
        "gpu",
        "gpus/",
        "uuid",
        ("uuid", "node", "index", "model", "core_used", "core_free", "memory_used_mib", "memory_mib"),
        filters=(NODE, POOL, Field("model", help="as NVML calls it")),
        words="GPUs and what is promised of them",
    ),
    Resource(
        "claim",
        "claims/",
        "uid",
        ("uid", "tenant", "name", "state", "assignments.node", "gpu_count", "core_request", "core_limit", "memory_mib"),
        filters=(TENANT, POOL, NODE, Field("state", help="one state"), Field("name", help="exactly this name")),
        words="pieces of GPUs that tenants asked for",
    ),
    Resource(
        "assignment",
        "assignments/",
        "uid",
        ("uid", "claim", "node", "gpu_index", "core_request", "core_limit", "memory_mib", "state"),
        filters=(TENANT, NODE, Field("claim", help="a claim's uid"), Field("gpu", help="a GPU's uuid")),
        words="claims' shares of single GPUs",
    ),
    Resource(
        "reservation",
        "reservations/",
        "uid",
        ("uid", "tenant", "name", "state", "start_at", "end_at", "gpu_count", "core_request", "memory_mib"),
        fields=RESERVED_FIELDS,
        filters=(TENANT, POOL, Field("state", help="one state"), Field("series", help="booked at once, a week apart")),
        verbs=frozenset({"list", "show", "change"}),
        words="pieces of GPUs booked for windows of time",
    ),
    Resource(
        "proposal",
        "proposals/",
        "uid",
        ("uid", "tenant", "claim_name", "kind", "state", "explanation"),
        filters=(
            TENANT,
            POOL,
            Field("claim", help="a claim's uid"),
            Field("kind", click.Choice(["lend", "give-back", "limit", "resize"]), "of what"),
            Field("state", help="one state"),
        ),
        words="what the rebalancer would change, or has changed",
    ),
    Resource(
        "budget",
        "budgets/",
        "id",
        ("id", "tenant", "period", "gpu_hours", "starts_at", "ends_at"),
        fields=(
            Field("tenant", help="a tenant's slug", required=True, changes=False),
            Field("period", click.Choice(["month", "week", "custom"]), "what it is for", required=True, changes=False),
            Field("starts_at", help="for a custom period: a moment, ISO 8601", changes=False),
            Field("ends_at", help="for a custom period: a moment, ISO 8601", changes=False),
            Field("gpu_hours", help="how many GPU-hours, like 1500 or 0.5", required=True),
        ),
        filters=(TENANT,),
        verbs=ALL,
        words="GPU-hours that tenants may use in a period",
    ),
    Resource(
        "price",
        "prices/",
        "id",
        ("id", "gpu_model", "pool", "per_gpu_hour", "currency", "valid_from"),
        fields=(
            Field("gpu_model", help="as NVML calls it", required=True),
            Field("pool", help="only in this pool"),
            Field("per_gpu_hour", help="a decimal number", required=True),
            Field("valid_from", help="a day, like 2026-07-01", required=True),
        ),
        filters=(POOL, Field("gpu_model", help="as NVML calls it")),
        verbs=frozenset({"list", "show", "create", "remove"}),
        words="what a GPU-hour costs",
    ),
    Resource(
        "token",
        "tokens/",
        "key",
        ("key", "name", "tenant", "role", "expires_at", "last_used_at", "revoked_at"),
        words="API tokens",
    ),
    Resource(
        "webhook",
        "webhooks/",
        "uid",
        ("uid", "tenant", "url", "events", "enabled", "failing_since"),
        fields=(
            Field("tenant", help="a tenant's slug; without it the whole platform (operators)", changes=False),
            Field("url", help="https://…, where messages go", flag="--to", required=True),
            Field("events", help="like claim.active; may be repeated", flag="--event", required=True, many=True),
            Field("description", help="for people"),
            Field("enabled", click.BOOL, "false: it is told nothing; true: begin anew"),
        ),
        filters=(TENANT,),
        verbs=ALL,
        words="who is told, by signed messages, of what happens",
    ),
    Resource(
        "queue",
        "pools/{parent}/queue/",
        "claim",
        ("position", "claim", "tenant", "name", "priority", "gpu_count", "core_request", "memory_mib"),
        filters=(TENANT,),
        verbs=frozenset({"list"}),
        parent="pool",
        words="what waits in a pool",
        order="next first",
    ),
    Resource(
        "audit",
        "audit/",
        "id",
        ("at", "actor", "action", "object_type", "object_id"),
        filters=(
            TENANT,
            Field("actor", help="who did it"),
            Field("action", help="like claim.create"),
            Field("object_type", help="like claim"),
            Field("object_id", help="like a claim's uid"),
            Field("since", help="a moment, ISO 8601"),
            Field("until", help="a moment, ISO 8601"),
        ),
        verbs=frozenset({"list"}),
        words="who changed what",
    ),
)
BY_NAME = {resource.name: resource for resource in TABLE}

# What a claim is asked for by, in `claim create` and in `run`; their names are the API's.
CLAIM_FIELDS = (
    Field("core_request", click.IntRange(1, 100), "percent of each GPU, guaranteed", flag="--core"),
    Field("memory_mib", SIZE, "device memory on each GPU, like 8GiB", flag="--memory"),
    Field("core_limit", click.IntRange(1, 100), "percent, the ceiling; as --core unless given", flag="--limit"),
    Field("gpu_count", click.IntRange(1, 64), "how many GPUs of one node; 1 unless given", flag="--gpus"),
    Field("tenant", help="who is charged; GPUCLOUD_TENANT, or the token's only tenant, unless given"),
    Field("pool", help="a pool's name; `default` unless given"),
    Field("gpu_model", help="only GPUs of this model"),
    Field("node_selector", Words(), "labels that its node must have, like zone=a,net=ib"),
    Field("affinity", help="a label: claims of the tenant that have it share a GPU"),
    Field("anti_affinity", help="a label: claims of the tenant that have it never share a GPU"),
    Field("exclusion", help="a label: its GPUs carry only claims of the tenant that have it"),
    Field("class", click.Choice(["guaranteed", "best-effort"]), "for the policy preempt"),
    Field("weight", click.INT, "for the policy weighted"),
    Field("priority", click.INT, "higher goes first"),
    Field("time_limit_seconds", DURATION, "released so long after it was placed", flag="--time-limit"),
    Field("start_at", help="a moment, ISO 8601; not placed before it"),
    Field("group", help="placed together with the others of this name; --group-size says how many"),
    Field("group_size", click.IntRange(2, 256), "how many claims the group has"),
    Field("when_over_quota", click.Choice(["refuse", "wait"]), "wait: queue until the quota has room"),
    Field("reservation", help="the uid of an active reservation, in whose room it runs and with which it ends"),
)
