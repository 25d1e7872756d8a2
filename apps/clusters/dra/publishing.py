"""Publication of a cluster's ResourceSlices: what the ledger has left of each GPU, as soon as it changes."""

import json
import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Protocol

from django.db import connection
from django.db.models import Q
from django.utils import timezone

from apps.clusters.core.devices import DEVICE_CLASS
from apps.clusters.dra import slices
from apps.clusters.dra.slices import GpuDevice
from apps.clusters.kube.client import Refused
from apps.clusters.models import Cluster
from apps.clusters.services import outside
from apps.nodes.models import Gpu
from apps.nodes.models.gpu import WHOLE
from apps.nodes.models.node import FRESH
from apps.scheduling.models import ClaimState

logger = logging.getLogger(__name__)

CONFLICT, MISSING = 409, 404
ABSENT_SECONDS = 30.0
# Between two looks for the DeviceClass.
CLASS_SECONDS = 30.0
COLUMNS = (
    "pk", "uuid", "index", "model", "memory_mib", "links", "core_used", "memory_used_mib", "core_outside",
    "memory_outside_mib", "cordoned", "unhealthy", "node__kubernetes_node", "node__driver_version", "node__cordoned",
    "node__fenced_at", "node__unhealthy", "node__last_seen_at", "node__draining_at",
)  # fmt: skip


# Summed in the database, twice a second: ten thousand claims' JSON takes 0.3 s to read here.
CONSUMED = """
    SELECT device.key, sum((device.value->>'core')::int), sum((device.value->>'memory_mib')::int)
    FROM clusters_deviceclaim AS held JOIN scheduling_claim AS claim ON claim.id = held.claim_id
    CROSS JOIN LATERAL jsonb_each(claim.pod->'devices') AS device
    WHERE held.cluster_id = %s AND held.ended_at IS NULL AND held.node_name <> '' AND claim.state <> ALL(%s)
    GROUP BY device.key
"""


class Api(Protocol):
    """Client of the cluster."""

    def find(self, path: str) -> dict[str, Any] | None: ...
    def post(self, path: str, body: Mapping[str, Any]) -> bytes: ...
    def put(self, path: str, body: Mapping[str, Any]) -> bytes: ...
    def delete(self, path: str) -> bytes: ...


def read_devices(cluster: Cluster) -> dict[str, list[GpuDevice]]:
    """Return the devices of the nodes whose agents are DRA drivers, by the node's name in Kubernetes."""
    rows = Gpu.objects.filter(node__pool=cluster.pool, node__dra=True, present=True).exclude(node__kubernetes_node="")
    found = list(rows.order_by("node_id", "index").values(*COLUMNS))
    if not found:
        return {}
    reserved = outside.reserved_amounts(cluster.pool, Q(node__dra=True))
    consumed = _consumed(cluster)
    links: dict[str, dict[str, Mapping[str, str]]] = defaultdict(dict)
    for row in found:
        links[row["node__kubernetes_node"]][row["uuid"]] = row["links"]
    groups = {uuid: group for of_node in links.values() for uuid, group in slices.nvlink_groups(of_node).items()}
    devices: dict[str, list[GpuDevice]] = {}
    fresh = timezone.now() - FRESH
    for row in found:
        uuid = row["uuid"]
        core, memory_mib = consumed.get(uuid, (0, 0))
        withheld = reserved.get(uuid, (0, 0))
        devices.setdefault(row["node__kubernetes_node"], []).append(
            GpuDevice(
                uuid=uuid,
                index=row["index"],
                model=row["model"],
                memory_mib=row["memory_mib"],
                core_left=WHOLE - row["core_used"] - row["core_outside"] - withheld[0] + core,
                memory_left_mib=row["memory_mib"] - row["memory_used_mib"] - row["memory_outside_mib"] - withheld[1]
                + memory_mib,
                driver_version=row["node__driver_version"],
                pool=cluster.pool.name,
                nvlink=groups[uuid],
                taints=tuple(_taints(row, fresh)),
            )
        )  # fmt: skip
    return devices


def _consumed(cluster: Cluster) -> dict[str, tuple[int, int]]:
    """Return what kube-scheduler counts of the placed ResourceClaims, by GPU: the ledger has counted it, too."""
    with connection.cursor() as cursor:
        cursor.execute(CONSUMED, [cluster.pk, [ClaimState.ALLOCATING.value, ClaimState.RELEASED.value]])
        return {uuid: (int(core), int(memory_mib)) for uuid, core, memory_mib in cursor.fetchall()}


def _taints(row: Mapping[str, Any], fresh: datetime) -> Iterable[tuple[str, str]]:
    if row["unhealthy"] or row["node__unhealthy"]:
        yield slices.UNHEALTHY, row["unhealthy"] or row["node__unhealthy"]
    if row["cordoned"] or row["node__cordoned"] or row["node__fenced_at"] or row["node__draining_at"]:
        yield slices.CORDONED, "draining" if row["node__draining_at"] else "fenced" if row["node__fenced_at"] else ""
    if row["node__last_seen_at"] is None or row["node__last_seen_at"] < fresh:
        yield slices.UNREACHABLE, ""


class Publisher:
    """The publisher of one cluster's slices; it remembers what it has written."""

    def __init__(self, cluster: Cluster, api: Api) -> None:
        self._cluster, self._api = cluster, api
        self._written: dict[str, list[GpuDevice]] = {}
        self._versions: dict[str, int] = {}
        # Uids of the cluster's nodes; a slice ends with its node.
        self._nodes: dict[str, str] = {}
        # Moments before which a node is not looked for, or its slice not written, again.
        self._absent: dict[str, float] = {}
        # Nodes that have a slice of an earlier process or of another hand: it is removed if it is not wanted.
        self._inherited: set[str] = set()
        # The moment at which the DeviceClass is looked for again: somebody may remove it.
        self._class_due = 0.0

    def compare(self, node: str, version: str) -> None:
        """Write the node's slice again if somebody else has changed or removed it: its version is newer than ours."""
        if int(version) > self._versions.get(node, 0):
            if node in self._written:
                self._inherited.add(node)
            self._forget(node)

    def forget_others(self, there: Collection[str]) -> None:
        """Write the slices of all but these nodes again."""
        for node in self._written.keys() - set(there):
            self._forget(node)

    def inherit(self, nodes: Collection[str]) -> None:
        """Remove the slices of these nodes unless they are wanted: their publisher may have ended long ago."""
        self._inherited |= set(nodes)

    def _forget(self, node: str) -> None:
        for remembered in (self._written, self._versions, self._nodes):
            remembered.pop(node, None)

    def publish(self) -> int:
        """Write the slices that changed; return their number. Raises Unreachable, Refused."""
        wanted = read_devices(self._cluster)
        if wanted and time.monotonic() >= self._class_due:
            self._make_class()
        written = 0
        for node, gpus in wanted.items():
            if self._written.get(node) != gpus and self._absent.get(node, 0.0) < time.monotonic():
                written += self._write(node, gpus)
        for node in (self._written.keys() | self._inherited) - wanted.keys():
            self._remove(node)
        self._inherited.clear()
        return written

    def _make_class(self) -> None:
        path = f"/apis/{slices.GROUP}/deviceclasses"
        if self._api.find(f"{path}/{DEVICE_CLASS}") is None:
            self._api.post(path, slices.device_class())
        self._class_due = time.monotonic() + CLASS_SECONDS

    def _write(self, node: str, gpus: list[GpuDevice]) -> bool:
        """Write one slice; return False if the cluster has no such node."""
        if node not in self._nodes:
            found = self._api.find(f"/api/v1/nodes/{node}")
            if found is None:
                # Of another cluster with the same pool, or still to come.
                self._absent[node] = time.monotonic() + ABSENT_SECONDS
                return False
            self._nodes[node] = str(found["metadata"]["uid"])
        thing = slices.slice_of(node, self._nodes[node], gpus)
        path = f"{slices.PATH}/{thing['metadata']['name']}"
        try:
            there = self._api.find(path)
            if there is None:
                answer = self._api.post(slices.PATH, thing)
            else:
                thing["metadata"]["resourceVersion"] = there["metadata"]["resourceVersion"]
                answer = self._api.put(path, thing)
        except Refused as error:
            if error.status in (CONFLICT, MISSING):
                logger.info("slice of node %s is written again: %s", node, error.detail)
                return False
            if error.worth_another_try:
                raise
            # One node's slice that the API server does not take must not keep back those of all others.
            logger.warning("slice of node %s: %s", node, error.detail)
            self._absent[node] = time.monotonic() + ABSENT_SECONDS
            return False
        self._written[node] = gpus
        self._versions[node] = int(json.loads(answer)["metadata"]["resourceVersion"])
        return True

    def _remove(self, node: str) -> None:
        try:
            self._api.delete(f"{slices.PATH}/{slices.name_slice(node)}")
        except Refused as error:
            if error.status != MISSING:
                raise
        self._forget(node)
