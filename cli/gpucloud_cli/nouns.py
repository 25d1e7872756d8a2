"""Nouns and titles of resources in help texts, with an example of each command. A test parses the examples."""

from collections.abc import Mapping
from dataclasses import dataclass, field

UID = "0198c1ab-7000-7000-8000-000000000000"
PARENTS = {"tenant": "vision", "pool": "default"}


@dataclass(frozen=True)
class Wording:
    """One object and several in a sentence, a title of the group, a key, and arguments by verb."""

    noun: str
    plural: str
    title: str
    key: str = UID
    arguments: Mapping[str, str] = field(default_factory=dict)


WORDING = {
    "tenant": Wording(
        "a tenant",
        "tenants",
        "Tenants, which quotas and costs are charged to",
        key="vision",
        arguments={"create": 'vision --name "Computer vision"', "change": "--weight 2"},
    ),
    "member": Wording(
        "a member",
        "a tenant's members",
        "Members of a tenant, and their roles",
        key="ada",
        arguments={"create": "ada --role member"},
    ),
    "organisation": Wording(
        "an organisation",
        "organisations",
        "Organisations: a tree above tenants, whose quotas they share",
        key="research",
        arguments={
            "list": "--parent university",
            "create": 'research --name "Research" --parent university',
            "change": "--parent university",
        },
    ),
    "organisation-quota": Wording(
        "a quota of an organisation",
        "quotas of organisations",
        "Quotas of organisations: limits of what all their tenants hold together",
        key="12",
        arguments={
            "list": "--organisation research",
            "create": "--organisation research --resource core_percent --hard 800",
            "change": "--hard 1200",
        },
    ),
    "quota": Wording(
        "a quota",
        "quotas",
        "Quotas: limits on the resources of a tenant",
        key="12",
        arguments={
            "list": "--tenant vision",
            "create": "--tenant vision --resource memory_mib --hard 16GiB",
            "change": "--hard 32GiB",
        },
    ),
    "quota-request": Wording(
        "a quota request",
        "quota requests",
        "Quota requests of tenants, and their answers",
        arguments={
            "list": "--state open",
            "create": '--tenant vision --resource gpus --amount 4 --reason "conference deadline"',
        },
    ),
    "limit-range": Wording(
        "a limit range",
        "limit ranges",
        "Limit ranges: bounds and defaults of a tenant's single claims",
        key="12",
        arguments={
            "list": "--tenant vision",
            "create": "--tenant vision --field memory_mib --maximum 64GiB",
            "change": "--maximum 32GiB",
        },
    ),
    "member-limit": Wording(
        "a member limit",
        "member limits",
        "Member limits: limits of single members within their tenant's quota",
        key="12",
        arguments={
            "list": "--tenant vision",
            "create": "--tenant vision --member ada --resource gpus --hard 2",
            "change": "--hard 4",
        },
    ),
    "pool": Wording(
        "a pool",
        "pools",
        "Pools: named sets of nodes",
        key="default",
        arguments={"create": "batch --policy fair", "change": "--policy weighted"},
    ),
    "node": Wording(
        "a node",
        "nodes",
        "Nodes: machines with an agent",
        key="gpu-7",
        arguments={"list": "--pool default", "change": "--labels zone=a,net=ib"},
    ),
    "gpu": Wording(
        "a GPU",
        "GPUs",
        "GPUs, and how much of them is allocated",
        key="GPU-5f3b2c1e-0000-0000-0000-000000000000",
        arguments={"list": "--node gpu-7"},
    ),
    "claim": Wording(
        "a claim",
        "claims",
        "Claims: shares of GPUs that tenants requested",
        key="train",
        arguments={"list": "--tenant vision --state active"},
    ),
    "job": Wording(
        "a job",
        "jobs",
        "Jobs: commands that a node's agent starts under a claim",
        arguments={"list": "--state running"},
    ),
    "array": Wording(
        "an array",
        "arrays",
        "Arrays: jobs of one command, which differ by their index (`job run --array`)",
        arguments={"list": "--tenant vision"},
    ),
    "group": Wording(
        "a group",
        "groups",
        "Groups of claims that grow and shrink (`claim create --group-most`)",
        key="train",
        arguments={"list": "--tenant vision"},
    ),
    "assignment": Wording(
        "an assignment",
        "assignments",
        "Assignments: shares of single GPUs that claims have",
        arguments={"list": "--node gpu-7"},
    ),
    "reservation": Wording(
        "a reservation",
        "reservations",
        "Reservations: shares of GPUs booked for windows of time",
        arguments={"list": "--tenant vision", "change": "--end 2026-07-01T18:00Z"},
    ),
    "proposal": Wording(
        "a proposal",
        "proposals",
        "Proposals: changes that the rebalancer suggests, or has applied",
        arguments={"list": "--state proposed"},
    ),
    "budget": Wording(
        "a budget",
        "budgets",
        "Budgets: GPU-hours that tenants may use in a period",
        key="12",
        arguments={
            "list": "--tenant vision",
            "create": "--tenant vision --period month --gpu-hours 1500",
            "change": "--gpu-hours 2000",
        },
    ),
    "price": Wording(
        "a price",
        "prices",
        "Prices of a GPU-hour",
        key="12",
        arguments={
            "list": "--pool default",
            "create": '--gpu-model "NVIDIA H100 80GB HBM3" --per-gpu-hour 2.5 --valid-from 2026-07-01',
        },
    ),
    "user": Wording(
        "a user", "users", "Users: people with an account", key="ada", arguments={"change": "--operator true"}
    ),
    "invitation": Wording("an invitation", "invitations", "Invitations of people without an account"),
    "token": Wording("a token", "API tokens", "API tokens", key="KEY"),
    "webhook": Wording(
        "a webhook",
        "webhooks",
        "Webhooks: addresses that receive events as signed messages",
        arguments={
            "list": "--tenant vision",
            "create": "--tenant vision --to https://ci.example.org/hook --event claim.active",
            "change": "--enabled true",
        },
    ),
    "queue": Wording("a queue", "the queue of a pool", "Queues of pools", key=""),
    "round": Wording(
        "a scheduling cycle",
        "scheduling cycles",
        "Scheduling cycles, and what each decided",
        key="12",
        arguments={"list": "--pool default"},
    ),
    "cluster": Wording(
        "a cluster",
        "clusters",
        "Clusters: Kubernetes clusters whose pods use claims",
        key="lab",
        arguments={
            "list": "--pool default",
            "create": "lab --pool default --in-cluster true",
            "change": "--enabled false",
        },
    ),
    "audit": Wording(
        "an audit event", "audit events", "Audit log of changes", key="", arguments={"list": "--actor ada"}
    ),
}
