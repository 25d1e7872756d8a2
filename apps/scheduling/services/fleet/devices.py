"""A pool's GPUs and nodes read for the core: a few queries, whatever the size."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from django.db.models import Count, Q, QuerySet

from apps.nodes.models import Gpu, Node
from apps.nodes.services.back_ends import serves, sharing_group
from apps.nodes.services.gpu_rows import GpuRow, gpu_rows
from apps.quotas.models import Pool
from apps.quotas.models.pool import BackEnd, MigInstances
from apps.scheduling.core.mig import Mig, Profile
from apps.scheduling.core.values import CORDONED, MIG_MODE, SHARING_GROUP, GpuState, Label, NodeState, Placed, Request
from apps.scheduling.models import Assignment
from gpucloud.fastpath.compiled_queries import compiled_query

LABEL_KINDS = ("affinity", "anti-affinity", "exclusion")
LABEL_COLUMNS = ("gpu_id", "claim__tenant_id", "claim__affinity", "claim__anti_affinity", "claim__exclusion")
# The labels that nodes have by themselves while their agents run jobs, container images, several claims in a MIG
# instance, and remote shares, or lend memory. Claims of jobs, and claims that open their instance, are used remotely or
# borrow memory select them.
NODE_NAME = "gpucloud.io/node"
RUNS_JOBS, RUNS_IMAGES = {"gpucloud.io/jobs": "true"}, {"gpucloud.io/images": "true"}
SHARES_INSTANCES = {"gpucloud.io/shared-instances": "true"}
TAKES_REMOTE, LENDS_MEMORY = {"gpucloud.io/remote": "true"}, {"gpucloud.io/lent-memory": "true"}
OWN_LABELS = {**RUNS_JOBS, **RUNS_IMAGES, **SHARES_INSTANCES, **TAKES_REMOTE, **LENDS_MEMORY}
# The fields of a node that stand for these labels, in their order.
OWN_LABEL_FIELDS = ("jobs", "images", "shared_instances", "remote", "lends_memory")
# The fields of a node on which the state of its GPUs depends.
OF_NODE = ("name", "cordoned", "draining_at", "unhealthy", "fenced_at", "last_seen_at", "returning_frame", "backends")
# A link between two GPUs: their uuids, and the kind of link.
Pair = tuple[str, str, str]
LABELLED = Q(claim__affinity__isnull=False) | Q(claim__anti_affinity__isnull=False) | Q(claim__exclusion__isnull=False)


def could_carry(pool: Pool, request: Request) -> bool:
    """Return True if one node of the pool has the GPUs for the request, were they all free: one query.

    `never_fits` says the same for the whole fleet, and why; a claim that can be carried need not wait for that.
    """
    if (request.gpu_count, request.gpu_model, request.profile) == (1, None, None) and not request.node_selector:
        return bool(_large_enough(pool.pk, request.memory_mib))
    if request.profile is not None:
        # Few pools have GPUs in MIG mode: `never_fits` looks at each.
        return False
    gpus = Gpu.objects.filter(node__pool=pool, memory_mib__gte=request.memory_mib, mig__isnull=True)
    if request.models:
        gpus = gpus.filter(model__in=request.models)
    if request.node_selector:
        gpus = gpus.filter(on_nodes_with(dict(request.node_selector)))
    if request.gpu_count == 1:
        return gpus.exists()
    return gpus.order_by("node").values("node").annotate(gpus=Count("pk")).filter(gpus__gte=request.gpu_count).exists()


def on_nodes_with(selector: dict[str, str]) -> Q:
    """Return the condition of GPUs whose node has these labels, of which some are the node's own (`OWN_LABELS`)."""
    given = {name: value for name, value in selector.items() if name not in OWN_LABELS}
    own = Q(node__jobs=True) if RUNS_JOBS.items() <= selector.items() else Q()
    own &= Q(node__images=True) if RUNS_IMAGES.items() <= selector.items() else Q()
    own &= Q(node__shared_instances=True) if SHARES_INSTANCES.items() <= selector.items() else Q()
    own &= Q(node__remote__isnull=False) if TAKES_REMOTE.items() <= selector.items() else Q()
    own &= Q(node__lends_memory=True) if LENDS_MEMORY.items() <= selector.items() else Q()
    return own & Q(node__labels__contains=given)


@compiled_query
def _large_enough(pool: Any, memory_mib: Any) -> QuerySet[Gpu, tuple[int]]:
    found = Gpu.objects.filter(node__pool=pool, memory_mib__gte=memory_mib, mig__isnull=True)
    return found.values_list("pk")[:1]


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as the core takes it, and the keys of its rows."""

    pk: int
    node_id: int
    state: GpuState

    def carrying(self, request: Request) -> "Device":
        """Return the device carrying the request too."""
        return replace(self, state=carrying(self.state, request))


def carrying(gpu: GpuState, request: Request) -> GpuState:
    """Return the GPU carrying the request too."""
    mig = gpu.mig
    if mig is not None and request.profile is not None and (start := mig.choose(request.profile)) is not None:
        mig = mig.occupied(request.profile, start)
    return replace(
        gpu,
        mig=mig,
        core_free=gpu.core_free - request.core_request,
        memory_free_mib=gpu.memory_free_mib - request.memory_mib,
        labels=tuple(sorted(gpu.labels + request.labels)),
    )


def with_placement(fleet: dict[str, GpuState], answer: Placed, request: Request) -> dict[str, GpuState]:
    """Return the fleet after the request is placed."""
    return {**fleet, **{uuid: carrying(fleet[uuid], request) for uuid in answer.gpus}}


def read_fleet(pool: Pool) -> list[GpuState]:
    """Read every GPU of the pool, in a fixed order."""
    return [device.state for device in read_devices(pool)]


def read_devices(pool: Pool, which: Q | None = None) -> list[Device]:
    """Read the pool's GPUs, all or those selected, ordered by node name and GPU index."""
    rows = gpu_rows(Gpu.objects.filter(which or Q(), node__pool=pool).order_by("node__name", "index"))
    labels = labels_on(pool, None if which is None else [gpu.pk for gpu in rows])
    for gpu_id, groups in groups_on(pool, [gpu.pk for gpu in rows]).items():
        labels[gpu_id] = (*labels.get(gpu_id, ()), *groups)
    used = slices_used([gpu.pk for gpu in rows if gpu.mig is not None])
    nodes = Node.objects.only(*OF_NODE).in_bulk({gpu.node_id for gpu in rows})
    states = {pk: node.state for pk, node in nodes.items()}
    return [
        Device(
            gpu.pk,
            gpu.node_id,
            GpuState(
                uuid=gpu.uuid,
                node=nodes[gpu.node_id].name,
                index=gpu.index,
                model=gpu.model,
                memory_mib=gpu.memory_mib,
                core_free=gpu.core_free,
                memory_free_mib=gpu.memory_free_mib,
                schedulable=gpu.mig is None
                and gpu.state == "ready"
                and states[gpu.node_id] == "ready"
                and serves(nodes[gpu.node_id], pool.backend),
                unhealthy=_ails(gpu, nodes[gpu.node_id], states[gpu.node_id], pool),
                labels=labels.get(gpu.pk, ()),
                core_over=max(0, -gpu.core_left),
                memory_over_mib=max(0, -gpu.memory_left_mib),
                mig=mig_state(
                    gpu.mig,
                    used.get(gpu.pk, 0),
                    ready=gpu.state == "ready" and states[gpu.node_id] == "ready",
                    static=pool.mig == MigInstances.STATIC,
                ),
            ),
        )
        for gpu in rows
    ]


def _ails(gpu: GpuRow, node: Node, state: str, pool: Pool) -> str:
    """Return the problem that keeps claims off a GPU that is there, on a node that is there; empty if none."""
    if not gpu.present or state not in ("ready", "unhealthy", "fenced"):
        return ""
    if gpu.cordoned:
        return CORDONED
    if node.fenced_at is not None:
        return "its node is fenced"
    lacking = "" if serves(node, pool.backend) else f"its node cannot serve back end {pool.backend}"
    found = ", ".join(words for words in (gpu.unhealthy, node.unhealthy, lacking) if words)
    return found or (MIG_MODE if gpu.mig is not None else "")


def mig_state(facts: dict[str, Any] | None, used: int, *, ready: bool, static: bool = False) -> Mig | None:
    """Return the MIG state of a GPU from its row's `mig`; `used`: the slices that assignments have, a bit each.

    `static`: claims get the instances that others made; else the places of these are not for claims.
    """
    if facts is None:
        return None
    if static:
        return Mig(_prepared(facts), used, ready)
    profiles = tuple(
        Profile(row["name"], row["compute_slices"], row["memory_mib"], row["size"], tuple(row["starts"]))
        for row in facts["profiles"]
    )
    for row in facts["foreign"]:
        used |= ((1 << row["size"]) - 1) << row["start"]
    return Mig(profiles, used, ready)


def _prepared(facts: dict[str, Any]) -> tuple[Profile, ...]:
    """Return the profiles of the GPU with the instances that it has as their only places."""
    starts: dict[str, list[int]] = {}
    for row in facts["foreign"]:
        starts.setdefault(row["profile"], []).append(row["start"])
    return tuple(
        Profile(row["name"], row["compute_slices"], row["memory_mib"], row["size"], tuple(starts.get(row["name"], ())))
        for row in facts["profiles"]
    )


def slices_used(gpus: Collection[int]) -> dict[int, int]:
    """Read the memory slices that the instances of live assignments have, a bit each, by GPU."""
    used: dict[int, int] = {}
    if not gpus:
        return used
    rows = Assignment.objects.live().filter(gpu__in=gpus, mig_start__isnull=False)
    for gpu, start, size in rows.values_list("gpu_id", "mig_start", "mig_size"):
        used[gpu] = used.get(gpu, 0) | ((1 << (size or 0)) - 1) << (start or 0)
    return used


def read_nodes(pool: Pool, which: Q | None = None) -> list[NodeState]:
    """Read the pool's nodes, all or those selected: their labels, and the links between their GPUs."""
    nodes = Node.objects.filter(which or Q(), pool=pool)
    linked = Gpu.objects.filter(node__in=nodes).exclude(links={})
    pairs: dict[int, list[Pair]] = {}
    for node, uuid, links in linked.values_list("node", "uuid", "links"):
        # Each pair once, from the row of the smaller uuid.
        pairs.setdefault(node, []).extend((uuid, other, word) for other, word in links.items() if uuid < other)
    return [
        NodeState(node.name, tuple(sorted(labels_of(node).items())), tuple(sorted(pairs.get(node.pk, ()))))
        for node in nodes.only("name", "labels", *OWN_LABEL_FIELDS).order_by("name")
    ]


def labels_of(node: Node) -> dict[str, str]:
    """Return the labels that selectors of claims see: those that operators gave, and the node's own."""
    has = zip(OWN_LABEL_FIELDS, OWN_LABELS.items(), strict=True)
    own = {name: text for field, (name, text) in has if getattr(node, field)}
    return {**node.labels, NODE_NAME: node.name, **own}


def labels_on(pool: Pool, gpus: Collection[int] | None = None) -> dict[int, tuple[Label, ...]]:
    """Read the labels of the claims on the pool's GPUs, all or those given, by GPU."""
    # Selected by the GPU's pool: a claim may be of the pool that its node was in before.
    here = Q(gpu__node__pool=pool) if gpus is None else Q(gpu__in=gpus)
    # A suspended claim keeps nobody off, and is asked for again when it resumes.
    rows = Assignment.objects.filter(here, LABELLED).exclude(claim__state="released").exclude(state="suspended")
    found: dict[int, list[Label]] = {}
    for gpu, tenant, *names in rows.live().values_list(*LABEL_COLUMNS):
        of_one = [Label(kind, str(tenant), name) for kind, name in zip(LABEL_KINDS, names, strict=True) if name]
        found.setdefault(gpu, []).extend(of_one)
    return {gpu: tuple(sorted(labels)) for gpu, labels in found.items()}


def groups_on(pool: Pool, gpus: Collection[int]) -> dict[int, tuple[Label, ...]]:
    """Read the sharing groups of the claims on these GPUs, once for each claim, by GPU; none if the pool has none."""
    found: dict[int, list[Label]] = {}
    if pool.backend != BackEnd.MPS:
        return {}
    rows = Assignment.objects.live().filter(gpu__in=gpus, gpu__backend=BackEnd.MPS)
    for gpu, backend, mps_group, tenant in rows.values_list("gpu", "gpu__backend", "gpu__mps_group", "claim__tenant"):
        if (group := sharing_group(backend, mps_group, tenant)) is not None:
            found.setdefault(gpu, []).append(Label(SHARING_GROUP, "", group))
    return {gpu: tuple(sorted(labels)) for gpu, labels in found.items()}
