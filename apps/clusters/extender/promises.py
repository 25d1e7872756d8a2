"""The ledger beside the annotations: records promises to pods and reads what others hold.

Annotations do not contain claims outside of Kubernetes, reservations, closed nodes and resizes of running pods, and
placement does not read annotations. So a choice is written into the ledger, under the locks of its GPUs, before the
pod is annotated. Unavailable capacity is read every two seconds for all nodes, and once more under the locks: if it has
grown, the node is evaluated again. Nodes outside of the pool need no ledger; for the pool's nodes nothing is promised
while the database is away.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from django.db import DatabaseError, InterfaceError, OperationalError, connection
from django.db.models import Q, QuerySet

from apps.clusters.core.gpu_admission import WHOLE, Chosen, HeldShare
from apps.clusters.extender.cluster import Gpus, NoLedger
from apps.clusters.formats.gpu_manager import UNIT_MIB
from apps.clusters.kube.mirror import Grown, Mirror, Others
from apps.clusters.kube.pods import PodState
from apps.clusters.models import Cluster
from apps.clusters.services import outside
from apps.nodes.models import Gpu, Node
from gpucloud.fastpath.compiled_queries import compiled_query

logger = logging.getLogger(__name__)

Known = TypeVar("Known")


class Promises:
    """Promises of one cluster. Callable from any thread, one at a time."""

    def __init__(self, cluster: Cluster, mirror: Mirror) -> None:
        self._cluster, self._mirror = cluster, mirror
        self._ours: frozenset[str] = frozenset()
        self._others: Others = {}
        self._grown: Grown = {}

    def refresh(self) -> None:
        """Read the unavailable capacity of all nodes. Raises DatabaseError."""
        rows = Node.objects.filter(pool=self._cluster.pool_id).values_list("kubernetes_node", "name")
        self._ours = frozenset(theirs or ours for theirs, ours in rows)
        self._see(*self._read(Q(node__pool=self._cluster.pool_id)))

    def keep(self, pod: PodState, node: str, chosen: Chosen) -> bool:
        """Promise the pod these GPUs and no others; return False if less is available than was known.

        Then the node's unavailable capacity has been read again. Raises NoLedger.
        """
        return node not in self._ours or _surely(lambda: self._keep(pod, node, chosen))

    def withdraw(self, pod: PodState) -> None:
        """Withdraw the promise of a pod that could not be annotated."""
        try:
            _surely(lambda: outside.drop(cluster=self._cluster, pod_uid=pod.uid))
        except NoLedger as error:
            # The watch of pods drops it later.
            logger.warning("promise to pod %s/%s could not be withdrawn yet: %s", *pod.key, error)

    def gpus(self) -> Gpus:
        """Return model and UUID of the pool's GPUs, by node and index. Raises NoLedger."""
        return _surely(self._gpus)

    def _gpus(self) -> Gpus:
        found: dict[str, dict[int, tuple[str, str]]] = {}
        rows = Gpu.objects.filter(node__pool=self._cluster.pool_id, present=True)
        names = rows.values_list("node__kubernetes_node", "node__name", "index", "model", "uuid")
        for theirs, ours, index, model, uuid in names:
            found.setdefault(theirs or ours, {})[index] = model, uuid
        return found

    def _keep(self, pod: PodState, node: str, chosen: Chosen) -> bool:
        gpus = {index: (key, memory_mib) for index, key, memory_mib in _gpus_of(node, self._cluster.pool_id)}
        known: dict[int, tuple[int, int]] = {}
        for share in self._mirror.beside_annotations(node, without=(pod.uid,)):
            if share.index in gpus:
                key, _ = gpus[share.index]
                core, memory_mib = known.get(key, (0, 0))
                known[key] = core + share.core, memory_mib + share.memory * UNIT_MIB
        parts = _parts(pod, chosen, gpus)
        kept = outside.promise(cluster=self._cluster, pod_uid=pod.uid, parts=parts, known=known, shown=self._annotated)
        if not kept:
            others, grown = self._read(_named(node) & Q(node__pool=self._cluster.pool_id))
            self._see({**self._others, node: others.get(node, ())}, {**self._grown, node: grown.get(node, {})})
        return kept

    def _annotated(self, uid: str, index: int) -> tuple[int, int] | None:
        shown = self._mirror.annotated(uid, index)
        return None if shown is None else (shown[0], shown[1] * UNIT_MIB)

    def _read(self, which: Q) -> tuple[Others, Grown]:
        found = outside.unavailable(self._cluster, which)
        pods = outside.grown(self._cluster, Q(gpu__in=Gpu.objects.filter(which)), self._annotated)
        others: dict[str, list[HeldShare]] = {}
        grown: dict[str, dict[str, list[HeldShare]]] = {}
        rows = Gpu.objects.filter(pk__in={*found, *pods}).order_by("pk")
        for key, index, theirs, ours in rows.values_list("pk", "index", "node__kubernetes_node", "node__name"):
            core, memory_mib = found.get(key, (0, 0))
            if core or memory_mib:
                # A GPU of which others hold only memory cannot be taken whole either.
                others.setdefault(theirs or ours, []).append(_share(index, max(core, 1), memory_mib))
            for uid, more in pods.get(key, {}).items():
                grown.setdefault(theirs or ours, {}).setdefault(uid, []).append(_share(index, *more))
        return (
            {name: tuple(shares) for name, shares in others.items()},
            {name: {uid: tuple(shares) for uid, shares in there.items()} for name, there in grown.items()},
        )

    def _see(self, others: Others, grown: Grown) -> None:
        self._others, self._grown = others, grown
        self._mirror.see_others(others, grown)


def _share(index: int, core: int, memory_mib: int) -> HeldShare:
    return HeldShare(index, core, -(-memory_mib // UNIT_MIB))


def _named(node: Any) -> Q:
    return Q(node__kubernetes_node=node) | Q(node__kubernetes_node="", node__name=node)


@compiled_query
def _gpus_of(node: Any, pool: Any) -> QuerySet[Gpu, tuple[int, int, int]]:
    rows = Gpu.objects.filter(_named(node), node__pool=pool, present=True)
    return rows.order_by().values_list("index", "pk", "memory_mib")


def _parts(pod: PodState, chosen: Chosen, gpus: Mapping[int, tuple[int, int]]) -> outside.Parts:
    """Return the pod's parts by the GPUs' keys; `gpus`: key and memory of each by its index."""
    parts: dict[int, tuple[int, int]] = {}
    for place, indexes in chosen.items():
        asked = pod.containers[place]
        for key, whole_mib in (gpus[index] for index in indexes if index in gpus):
            core, memory_mib = parts.get(key, (0, 0))
            more_mib = whole_mib if asked.core >= WHOLE else asked.memory * UNIT_MIB
            parts[key] = core + min(asked.core, WHOLE), memory_mib + more_mib
    return parts


def _surely(does: Callable[[], Known]) -> Known:
    """Run the query, and once more if this thread's database connection has died. Raises NoLedger."""
    try:
        try:
            return does()
        except (InterfaceError, OperationalError):
            connection.close()
            return does()
    except DatabaseError as error:
        connection.close()
        raise NoLedger(str(error)) from error
