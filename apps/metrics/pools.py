"""Metrics of pools, their queues and nodes, of quotas and webhooks: one query each, whatever there is.

Series grow with pools, states and quotas, never with claims, GPUs or nodes.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from django.db.models import Count, F, Min, Q, Sum
from django.utils import timezone
from prometheus_client.core import GaugeMetricFamily

from apps.nodes.models import Gpu, Node
from apps.nodes.models.node import FRESH, STATES, state_now
from apps.quotas.models import Pool, ResourceQuota, WebhookDelivery
from apps.quotas.models.pool import FairShare, IdleRule
from apps.quotas.models.webhook import DeliveryState
from apps.scheduling.models import Claim, ClaimState, PackProfile, PastUse, RotationMember
from apps.scheduling.models.choices import Idle
from apps.scheduling.models.claim import WAITING

# The label of a quota that counts in all pools together.
EVERY_POOL = "*"


def queues(known: Sequence[Pool]) -> Iterator[GaugeMetricFamily]:
    """Yield the number of waiting claims, and the age of the oldest that waits for its first place."""
    length = GaugeMetricFamily("gpucloud_queue_claims", "Claims that wait to be placed.", labels=["pool", "state"])
    oldest = GaugeMetricFamily(
        "gpucloud_queue_oldest_seconds", "Age of the oldest claim that waits; 0 where none does.", labels=["pool"]
    )
    rows = Claim.objects.in_queue().order_by().values_list("pool__name", "state")
    found = {
        (pool, state): (number, since) for pool, state, number, since in rows.annotate(Count("pk"), Min("created_at"))
    }
    now = timezone.now()
    for pool in (one.name for one in known):
        waiting = {state: found.get((pool, state), (0, now)) for state in (*WAITING, ClaimState.RESUMING)}
        for state, (number, _) in waiting.items():
            length.add_metric([pool, state], number)
        oldest.add_metric([pool], (now - min(waiting[state][1] for state in WAITING)).total_seconds())
    yield from (length, oldest)


def past_use(known: Sequence[Pool]) -> Iterator[GaugeMetricFamily]:
    """Yield what tenants held of pools on average, where fair share remembers."""
    words = "Core that a tenant held on average in a pool whose fair share remembers, in GPUs; older times count less."
    family = GaugeMetricFamily("gpucloud_past_use_gpus", words, labels=["pool", "tenant"])
    names = {pool.pk: pool.name for pool in known if pool.fair_share == FairShare.DECAYED}
    rows = PastUse.objects.filter(pool__in=names).order_by().values_list("pool_id", "tenant__slug", "core_percent")
    for pool, tenant, core in rows if names else ():
        family.add_metric([names[pool], tenant], core / 100)
    yield family


def claims() -> Iterator[GaugeMetricFamily]:
    """Yield the number of claims that hold or wait for something, and of the active ones below their guarantee."""
    family = GaugeMetricFamily("gpucloud_claims", "Claims that are not released.", labels=["tenant", "pool", "state"])
    words = "Active claims that have got less core than guaranteed for a minute, although they wanted more."
    below = GaugeMetricFamily("gpucloud_claims_below_guarantee", words, labels=["tenant", "pool"])
    live = Claim.objects.exclude(state=ClaimState.RELEASED).order_by()
    rows = live.values_list("tenant__slug", "pool__name", "state")
    for *labels, state, number, missing in rows.annotate(Count("pk"), Count("below_guarantee_since")):
        family.add_metric([*labels, state], number)
        if state == ClaimState.ACTIVE:
            below.add_metric(labels, missing)
    yield from (family, below)


def idle(known: Sequence[Pool]) -> Iterator[GaugeMetricFamily]:
    """Yield the number of idle claims, in pools that have a rule for them."""
    words = "Claims idle for as long as their pool allows: without computing, or without any program."
    family = GaugeMetricFamily("gpucloud_claims_idle", words, labels=["pool", "reason"])
    rows = Claim.objects.filter(idle_since__isnull=False).order_by().values_list("pool__name", "idle_reason")
    found = {(pool, reason): number for pool, reason, number in rows.annotate(Count("pk"))}
    for pool in (one.name for one in known if one.idle_rule != IdleRule.OFF or one.unused_seconds is not None):
        for reason in Idle.values:
            family.add_metric([pool, reason], found.get((pool, reason), 0))
    yield family


def rotation(known: Sequence[Pool]) -> Iterator[GaugeMetricFamily]:
    """Yield the number of claims that share GPUs by time, in pools that are oversubscribed."""
    words = "Claims that share GPUs by time: those that are in, and those that wait for their slice."
    family = GaugeMetricFamily("gpucloud_rotation_claims", words, labels=["pool", "place"])
    is_in = Count("pk", filter=Q(place=0))
    rows = RotationMember.objects.order_by().values("claim__pool__name").annotate(inside=is_in, number=Count("pk"))
    found = {row["claim__pool__name"]: (row["inside"], row["number"] - row["inside"]) for row in rows}
    for pool in (one.name for one in known if one.oversubscribe is not None):
        for place, number in zip(("in", "out"), found.get(pool, (0, 0)), strict=True):
            family.add_metric([pool, place], number)
    yield family


def packed(known: Sequence[Pool]) -> Iterator[GaugeMetricFamily]:
    """Yield the claims measured beside another, in pools that pack, by whether they keep enough of their rate."""
    words = "Claims measured beside another on a GPU, by whether they keep pack_keep_percent of their rate alone."
    family = GaugeMetricFamily("gpucloud_packed_claims", words, labels=["pool", "keeps"])
    rows = PackProfile.objects.filter(kept__isnull=False, claim__state=ClaimState.ACTIVE).order_by()
    keeps = Count("pk", filter=Q(kept__gte=F("claim__pool__pack_keep_percent")))
    sums = rows.values("claim__pool__name").annotate(keeps=keeps, number=Count("pk"))
    found = {row["claim__pool__name"]: (row["keeps"], row["number"] - row["keeps"]) for row in sums}
    for pool in (one.name for one in known if one.pack_keep_percent is not None):
        for word, number in zip(("yes", "no"), found.get(pool, (0, 0)), strict=True):
            family.add_metric([pool, word], number)
    yield family


def nodes() -> Iterator[GaugeMetricFamily]:
    """Yield the nodes by state, those with a connected agent, behind or drifted, and their memory for suspensions."""
    family = GaugeMetricFamily(
        "gpucloud_nodes",
        f"Nodes by state: {', '.join(reversed(STATES))}.",
        labels=["pool", "state"],
    )
    agents = GaugeMetricFamily("gpucloud_agents_connected", "Nodes whose agent was seen in the last 10 s.")
    behind = GaugeMetricFamily(
        "gpucloud_nodes_behind",
        "Connected nodes whose limits in force are older than the desired ones.",
        labels=["pool"],
    )
    drifted = GaugeMetricFamily("gpucloud_nodes_drifted", "Nodes with drift that is not repaired.", labels=["pool"])
    memory = GaugeMetricFamily(
        "gpucloud_host_memory_mib", "Memory of nodes that suspended claims may take.", labels=["pool"]
    )
    memory_used = GaugeMetricFamily(
        "gpucloud_host_memory_mib_used", "Memory of nodes that suspended claims take.", labels=["pool"]
    )
    heard, connected = Q(last_seen_at__gt=timezone.now() - FRESH), 0
    numbers: dict[str, Any] = {state: Count("pk", filter=Q(state_now=state)) for state in STATES}
    numbers["memory"], numbers["memory_used"] = Sum("host_memory_mib"), Sum("host_memory_used_mib")
    numbers["heard"] = Count("pk", filter=heard)
    numbers["changed"] = Count("pk", filter=~Q(drifts=[]))
    numbers["not_yet"] = Count("pk", filter=heard & Q(observed_frame__lt=F("frame")))
    rows: Iterable[Any] = (
        Node.objects.annotate(state_now=state_now()).order_by("pool__name").values("pool__name").annotate(**numbers)
    )
    for row in rows:
        pool = row["pool__name"]
        for state in STATES:
            family.add_metric([pool, state], row[state])
        behind.add_metric([pool], row["not_yet"])
        drifted.add_metric([pool], row["changed"])
        memory.add_metric([pool], row["memory"])
        memory_used.add_metric([pool], row["memory_used"])
        connected += row["heard"]
    agents.add_metric([], connected)
    yield from (family, agents, behind, drifted, memory, memory_used)


def gpus() -> Iterator[GaugeMetricFamily]:
    """Yield the capacity of pools, the promised part of it, and the use beside that."""
    names = {
        "gpus": ("gpucloud_gpus", "GPUs that are there.", Count("pk")),
        "cordoned": (
            "gpucloud_gpus_cordoned",
            "GPUs that an operator has cordoned, or whose node is.",
            Count("pk", filter=Q(cordoned=True) | Q(node__cordoned=True)),
        ),
        "core_used": ("gpucloud_core_percent_promised", "Percent of a GPU that claims hold.", Sum("core_used")),
        "core_outside": (
            "gpucloud_core_percent_outside",
            "Percent of a GPU used by pods without a claim.",
            Sum("core_outside"),
        ),
        "memory": ("gpucloud_memory_mib", "Device memory in MiB.", Sum("memory_mib")),
        "memory_used": ("gpucloud_memory_mib_promised", "Device memory that claims hold.", Sum("memory_used_mib")),
        "memory_outside": (
            "gpucloud_memory_mib_outside",
            "Device memory used by pods without a claim.",
            Sum("memory_outside_mib"),
        ),
    }
    families = {key: GaugeMetricFamily(name, words, labels=["pool"]) for key, (name, words, _) in names.items()}
    present = Gpu.objects.filter(present=True).order_by("node__pool__name").values("node__pool__name")
    rows: Iterable[Any] = present.annotate(**{key: value for key, (_, _, value) in names.items()})
    for row in rows:
        for key, family in families.items():
            family.add_metric([row["node__pool__name"]], row[key])
    yield from families.values()


def quotas() -> Iterator[GaugeMetricFamily]:
    """Yield the limits and the use of quotas; `+Inf` if a quota has no limit."""
    labels = ["tenant", "pool", "resource"]
    hard = GaugeMetricFamily("gpucloud_quota_hard", "What the tenant may hold; +Inf: no limit.", labels=labels)
    used = GaugeMetricFamily("gpucloud_quota_used", "What the tenant holds.", labels=labels)
    borrowed = GaugeMetricFamily("gpucloud_quota_borrowed", "Of it, what is borrowed above hard.", labels=labels)
    columns = ("tenant__slug", "pool__name", "resource", "hard", "used", "borrowed")
    for tenant, pool, resource, *amounts in ResourceQuota.objects.order_by("pk").values_list(*columns):
        values = [tenant, pool or EVERY_POOL, resource]
        hard.add_metric(values, math.inf if amounts[0] is None else amounts[0])
        used.add_metric(values, amounts[1])
        borrowed.add_metric(values, amounts[2])
    yield from (hard, used, borrowed)


def messages() -> Iterator[GaugeMetricFamily]:
    """Yield the number of messages pending for enabled webhooks, and the age of the oldest; one query."""
    pending = WebhookDelivery.objects.filter(state=DeliveryState.PENDING, webhook__enabled=True)
    found = pending.aggregate(number=Count("pk"), since=Min("created_at"))
    age = (timezone.now() - found["since"]).total_seconds() if found["since"] else 0.0
    words = "Messages that their webhooks have not accepted yet."
    yield GaugeMetricFamily("gpucloud_webhook_messages_pending", words, value=found["number"])
    words = "Age of the oldest message that its webhook has not accepted yet; 0 if there is none."
    yield GaugeMetricFamily("gpucloud_webhook_oldest_seconds", words, value=age)
