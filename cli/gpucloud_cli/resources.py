"""Resources of the API: one table from which the commands are built.

A new resource of the API is a new entry here; its fields and filters come from `schema.json`. A test compares every
column with docs/openapi.yaml.
"""

from dataclasses import dataclass
from functools import cached_property

from gpucloud_cli.fields import Field, body_fields, filters, has_preview

ALL = frozenset({"list", "show", "create", "change", "remove"})
SHARE = ("gpu_count", "core_request", "memory_mib")
CLAIM_COLUMNS = ("uid", "tenant", "name", "state", "assignments.node", *SHARE, "core_limit", "created_by")


@dataclass(frozen=True)
class Resource:
    """One collection of the API and its commands; their fields are the API's."""

    name: str
    path: str
    key: str
    columns: tuple[str, ...]
    verbs: frozenset[str] = frozenset({"list", "show"})
    # The parent in the path, such as a member's tenant.
    parent: str | None = None
    order: str = "newest first"
    # Columns of `-o wide` beside the others.
    wide: tuple[str, ...] = ()
    # True if rows that are over stay as history, which a list leaves out, and the word for these.
    history: bool = False
    past: str = "released"
    # Fields that commands of their own change.
    elsewhere: frozenset[str] = frozenset()

    @property
    def pattern(self) -> str:
        """Return the path as `schema.json` has it."""
        return self.path.replace("{parent}", "{}")

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """Return the fields of a new object."""
        return body_fields(f"POST {self.pattern}", self.name, without=self.elsewhere, key=self.key)

    @cached_property
    def changes(self) -> tuple[Field, ...]:
        """Return the fields that can be changed later."""
        return body_fields(f"PATCH {self.pattern}{{}}/", self.name, without=self.elsewhere)

    @cached_property
    def filters(self) -> tuple[Field, ...]:
        """Return what a list can be narrowed by."""
        return filters(self.pattern, self.name)

    def previews(self, method: str) -> bool:
        """Return True if a method can be previewed (`?dry_run=true`)."""
        return has_preview(f"{method} {self.pattern}{'' if method == 'POST' else '{}/'}")


TABLE = (
    Resource(
        "tenant",
        "tenants/",
        "slug",
        ("slug", "name", "organisation", "weight", "cohort"),
        wide=("created_at", "version"),
        verbs=ALL,
    ),
    Resource(
        "member",
        "tenants/{parent}/members/",
        "username",
        ("username", "role"),
        verbs=frozenset({"list", "create", "remove"}),
        parent="tenant",
    ),
    Resource(
        "organisation",
        "organisations/",
        "slug",
        ("slug", "name", "parent"),
        wide=("created_at", "version"),
        verbs=ALL,
    ),
    Resource(
        "organisation-quota",
        "organisation-quotas/",
        "id",
        ("id", "organisation", "pool", "resource", "hard", "used", "free"),
        wide=("excess", "version"),
        verbs=ALL,
    ),
    Resource(
        "quota",
        "quotas/",
        "id",
        ("id", "tenant", "pool", "resource", "hard", "used", "borrowed"),
        wide=("borrowing_limit", "lending_limit", "version"),
        verbs=ALL,
    ),
    Resource(
        "quota-request",
        "quota-requests/",
        "uid",
        ("uid", "tenant", "pool", "resource", "period", "amount", "until", "state", "reason", "created_by"),
        verbs=frozenset({"list", "show", "create"}),
    ),
    Resource(
        "limit-range",
        "limit-ranges/",
        "id",
        ("id", "tenant", "pool", "field", "minimum", "maximum", "default"),
        verbs=ALL,
    ),
    Resource(
        "member-limit",
        "member-limits/",
        "id",
        ("id", "tenant", "member", "resource", "hard"),
        verbs=ALL,
    ),
    Resource(
        "pool",
        "pools/",
        "name",
        ("name", "sharing_policy", "placement_policy", "core_ceiling", "rebalance_mode", "description"),
        wide=(
            "backend",
            "mig",
            "mps_group",
            "patience_seconds",
            "fair_share",
            "idle_rule",
            "idle_seconds",
            "failover_policy",
            "audit_policy",
            "repair_drift",
        ),
        verbs=frozenset({"list", "show", "create", "change"}),
    ),
    Resource(
        "node",
        "nodes/",
        "name",
        ("name", "pool", "state", "hostname", "agent_version", "last_seen_at"),
        wide=("driver_version", "cordoned", "unhealthy", "drifted", "labels"),
        # `cordon` and `uncordon` change it.
        elsewhere=frozenset({"cordoned"}),
        verbs=frozenset({"list", "show", "change"}),
    ),
    Resource(
        "gpu",
        "gpus/",
        "uuid",
        ("uuid", "node", "index", "model", "state", "core_used", "core_free", "memory_used_mib", "memory_mib"),
        wide=("pool", "memory_free_mib", "present", "unhealthy"),
    ),
    Resource(
        "claim",
        "claims/",
        "uid",
        CLAIM_COLUMNS,
        wide=("pool", "class", "priority", "time_limit_seconds", "created_at"),
        history=True,
    ),
    Resource(
        "job",
        "jobs/",
        "uid",
        ("uid", "tenant", "name", "state", "exit_code", "node", "started_at", "ended_at", "created_by"),
        wide=("pool", "claim", "array", "command", "image", "runs", "reason"),
        history=True,
        past="ended",
    ),
    Resource(
        "array",
        "job-arrays/",
        "uid",
        ("uid", "tenant", "name", "state", "size", "at_once", "jobs", "created_by"),
        wide=("pool", "created_at", "updated_at"),
        history=True,
        past="ended",
    ),
    Resource(
        "group",
        "groups/",
        "name",
        ("name", "tenant", "pool", "state", "group_size", "group_most", "generation", "members.node"),
        wide=("uid", "updated_at"),
        history=True,
    ),
    Resource(
        "assignment",
        "assignments/",
        "uid",
        ("uid", "claim", "node", "gpu_index", "core_request", "core_limit", "memory_mib", "state"),
        wide=("gpu_uuid", "generation", "observed_generation", "in_force_at", "reason"),
        history=True,
    ),
    Resource(
        "reservation",
        "reservations/",
        "uid",
        ("uid", "tenant", "name", "state", "start_at", "end_at", *SHARE, "created_by"),
        wide=("pool", "gpu_model", "grace_seconds", "created_at"),
        verbs=frozenset({"list", "show", "change"}),
    ),
    Resource(
        "proposal",
        "proposals/",
        "uid",
        ("uid", "tenant", "claim_name", "kind", "state", "explanation"),
        wide=("claim", "pool", "created_at"),
    ),
    Resource(
        "budget",
        "budgets/",
        "id",
        ("id", "tenant", "period", "gpu_hours", "when_spent", "starts_at", "ends_at"),
        verbs=ALL,
    ),
    Resource(
        "price",
        "prices/",
        "id",
        ("id", "gpu_model", "pool", "per_gpu_hour", "currency", "valid_from"),
        verbs=frozenset({"list", "show", "create", "remove"}),
    ),
    Resource(
        "user",
        "users/",
        "username",
        ("username", "email", "active", "operator", "roles", "last_seen_at"),
        verbs=frozenset({"list", "show", "change"}),
        # `activate` and `deactivate` change it.
        elsewhere=frozenset({"active"}),
    ),
    Resource(
        "invitation",
        "invitations/",
        "uid",
        ("uid", "username", "email", "tenant", "role", "operator", "state", "created_by", "expires_at"),
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
        verbs=ALL,
    ),
    Resource(
        "queue",
        "pools/{parent}/queue/",
        "claim",
        ("position", "claim", "tenant", "name", "priority", "gpu_count", "core_request", "memory_mib"),
        verbs=frozenset({"list"}),
        parent="pool",
        order="next first",
    ),
    Resource(
        "round",
        "rounds/",
        "id",
        ("id", "pool", "at", "duration_us", "considered", "placed"),
    ),
    Resource(
        "cluster",
        "clusters/",
        "name",
        ("name", "pool", "state", "enabled"),
        verbs=ALL,
    ),
    Resource(
        "audit",
        "audit/",
        "id",
        ("at", "actor", "action", "object_type", "object_id"),
        verbs=frozenset({"list"}),
    ),
)
BY_NAME = {resource.name: resource for resource in TABLE}
