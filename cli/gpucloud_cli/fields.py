"""Fields that a caller gives, and the types of their values; their names are the API's."""

from dataclasses import dataclass

import click

from gpucloud_cli.amounts import AMOUNT, DURATION, IN, SIZE, OrNull, Words

LIMIT = OrNull(AMOUNT, "unlimited")
RESOURCES = click.Choice(["core_percent", "memory_mib", "vgpus", "gpus"])
REQUESTED = click.Choice([*RESOURCES.choices, "gpu_hours"])
LIMITED = click.Choice(["core_request", "core_limit", "memory_mib", "gpu_count", "time_limit_seconds"])
ROLES = click.Choice(["admin", "member", "viewer"])
PLACEMENT = click.Choice(["gpucloud", "fgd", "binpack", "spread", "topology", "gpu-admission", "random"])
AUDIT = click.Choice(["warn", "kill", "fence"])
FAILOVER = click.Choice(["wait", "requeue", "release"])
IDLE_RULES = click.Choice(["off", "report", "shrink", "release"])
REBALANCING = click.Choice(["off", "propose", "apply"])
POLICIES = click.Choice(["burst", "fixed", "fair", "weighted", "average", "preempt", "native"])


@dataclass(frozen=True)
class Field:
    """One field that a caller gives: an option, or the argument that names the object."""

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
        """Return `--core` for `core_request`, else the field's name with dashes."""
        return self.flag or "--" + self.name.replace("_", "-")


TENANT = Field("tenant", help="a tenant's slug")
POOL = Field("pool", help="a pool's name")
NODE = Field("node", help="a node's name")
POOL_OR_ALL = Field("pool", OrNull(click.STRING, "all"), "a pool's name; default: all pools together", changes=False)

RESERVED_FIELDS = (
    Field("name", help="a display name"),
    Field("start_at", IN, "a time in ISO 8601, or like 2h from now; default: now", flag="--start"),
    Field("end_at", IN, "a time, or like 7d from now; its claims end then too", flag="--end"),
    Field("grace_seconds", OrNull(DURATION), "release it after this time without a claim; or none", flag="--grace"),
    Field("idle_percent", OrNull(click.IntRange(1, 100)), "report it if its claims use less of its core; or none"),
    Field("idle_seconds", DURATION, "how long it must be idle before it is reported", flag="--idle-for"),
)

# Fields of a new claim, in `claim create` and in `run`; their names are the API's.
CLAIM_FIELDS = (
    Field("core_request", click.IntRange(1, 100), "guaranteed percent of each GPU", flag="--core"),
    Field("memory_mib", SIZE, "memory on each GPU, like 8GiB", flag="--memory"),
    Field("core_limit", click.IntRange(1, 100), "most percent of each GPU; default: --core", flag="--limit"),
    Field("gpu_count", click.IntRange(1, 64), "number of GPUs on one node; default: 1", flag="--gpus"),
    Field("tenant", help="the tenant to charge; default: GPUCLOUD_TENANT, or the token's only tenant"),
    Field("pool", help="a pool's name; default: `default`"),
    Field("gpu_model", help="use GPUs of this model only"),
    Field("node_selector", Words(), "labels of its node, like zone=a,net=ib"),
    Field("affinity", help="share a GPU with the tenant's claims that have this label"),
    Field("anti_affinity", help="never share a GPU with the tenant's claims that have this label"),
    Field("exclusion", help="share GPUs only with the tenant's claims that have this label"),
    Field("class", click.Choice(["guaranteed", "best-effort"]), "the class under the policy preempt"),
    Field("weight", click.INT, "the weight under the policy weighted"),
    Field("rebalance", click.BOOL, "let the rebalancer change its limits and lend its idle core; default: true"),
    Field("priority", click.INT, "the priority; higher goes first"),
    Field("time_limit_seconds", DURATION, "release it this long after its placement", flag="--time-limit"),
    Field("start_at", IN, "earliest placement: a time in ISO 8601, or like 2h from now"),
    Field("group", help="place it together with the claims of this group; see --group-size"),
    Field("group_size", click.IntRange(2, 256), "number of claims in the group"),
    Field("when_over_quota", click.Choice(["refuse", "wait"]), "refuse it, or queue it until the quota has room"),
    Field("reservation", help="the uid of an active reservation to run in; the claim ends with it"),
)
