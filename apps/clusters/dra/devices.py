"""Devices of a cluster's pool: each GPU, what the ledger has left of it, and what keeps new work away.

Read twice a second. One statement of a row for each node says which nodes differ from the last time; only their GPUs
are read, again in one statement with what ResourceClaims consume: a release between two would publish too little.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connection
from django.db.models import Q
from django.utils import timezone

from apps.clusters.dra import slices
from apps.clusters.dra.slices import GpuDevice
from apps.clusters.models import Cluster
from apps.clusters.services import outside
from apps.nodes.models.gpu import WHOLE
from apps.nodes.models.node import FRESH
from apps.quotas.models import Pool
from apps.scheduling.models import ClaimState

# What kube-scheduler counts of the placed ResourceClaims is summed here: ten thousand claims' JSON takes 0.3 s to read.
FOUND = """
    WITH consumed AS (
        SELECT device.key AS uuid, sum((device.value->>'core')::int) AS core,
               sum((device.value->>'memory_mib')::bigint) AS memory_mib
        FROM clusters_deviceclaim AS held JOIN scheduling_claim AS claim ON claim.id = held.claim_id
        CROSS JOIN LATERAL jsonb_each(claim.pod->'devices') AS device
        WHERE held.cluster_id = %(cluster)s AND held.ended_at IS NULL AND held.node_name <> ''
          AND claim.state <> ALL(%(unplaced)s)
        GROUP BY device.key
    ), found AS (
        SELECT node.kubernetes_node AS node, gpu.uuid, gpu.index AS place, gpu.model, gpu.memory_mib,
               gpu.core_used + gpu.core_outside - coalesce(consumed.core, 0) AS core_held,
               gpu.memory_used_mib + gpu.memory_outside_mib - coalesce(consumed.memory_mib, 0) AS memory_held_mib,
               node.driver_version, coalesce(nullif(gpu.unhealthy, ''), node.unhealthy) AS unhealthy,
               gpu.cordoned OR node.cordoned AS cordoned, node.fenced_at IS NOT NULL AS fenced,
               node.draining_at IS NOT NULL AS draining,
               coalesce(node.last_seen_at < %(fresh)s, true) AS silent, node.id AS node_id, gpu.links
        FROM nodes_gpu AS gpu JOIN nodes_node AS node ON node.id = gpu.node_id
        LEFT JOIN consumed ON consumed.uuid = gpu.uuid
        WHERE node.pool_id = %(pool)s AND node.dra AND gpu.present AND gpu.mig IS NULL AND node.kubernetes_node <> ''
    )
"""
# A hash of all that is read of the node's GPUs, whatever their order.
VERSIONS = f"{FOUND} SELECT node, sum(hash_record_extended(found, 0)) FROM found GROUP BY node"  # noqa: S608
ROWS = f"{FOUND} SELECT * FROM found WHERE node = ANY(%(nodes)s) ORDER BY node_id, place"  # noqa: S608


class _Row(NamedTuple):
    """A row of ROWS."""

    node: str
    uuid: str
    place: int
    model: str
    memory_mib: int
    # Used in all, less what kube-scheduler has counted itself.
    core_held: int
    memory_held_mib: int
    driver_version: str
    unhealthy: str
    cordoned: bool
    fenced: bool
    draining: bool
    silent: bool
    node_id: int
    links: str


class DeviceReader:
    """Reader of the devices of one cluster's nodes whose agents are DRA drivers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._versions: dict[str, Any] = {}
        self._devices: dict[str, list[GpuDevice]] = {}
        # Withheld for reservations, by GPU.
        self._reserved: Mapping[str, tuple[int, int]] = {}

    def read(self) -> dict[str, list[GpuDevice]]:
        """Return the devices by the node's name in Kubernetes; a node that has not changed has the same list."""
        fresh = timezone.now() - FRESH
        versions = dict(self._select(VERSIONS, fresh))
        reserved = outside.reserved_amounts(self._cluster.pool, Q(node__dra=True)) if versions else {}
        differ = {uuid for uuid, _ in reserved.items() ^ self._reserved.items()}
        same = {
            node: devices
            for node, devices in self._devices.items()
            if versions.get(node) == self._versions[node] and not (differ and differ & {one.uuid for one in devices})
        }
        self._reserved = reserved
        changed = versions.keys() - same.keys()
        # A node that is gone by now is in neither, and so is read anew if it comes back.
        self._devices = same | (self._read_nodes(changed, fresh) if changed else {})
        self._versions = {node: versions[node] for node in self._devices}
        return self._devices

    def _read_nodes(self, nodes: Collection[str], fresh: datetime) -> dict[str, list[GpuDevice]]:
        by_node: dict[str, list[_Row]] = {}
        for row in map(_Row._make, self._select(ROWS, fresh, nodes=list(nodes))):
            by_node.setdefault(row.node, []).append(row)
        return {node: _describe(rows, self._cluster.pool, self._reserved) for node, rows in by_node.items()}

    def _select(self, statement: str, fresh: datetime, **more: Any) -> list[Any]:
        unplaced = [ClaimState.ALLOCATING.value, ClaimState.RELEASED.value]
        facts: dict[str, Any] = {
            "cluster": self._cluster.pk,
            "pool": self._cluster.pool_id,
            "unplaced": unplaced,
            "fresh": fresh,
        }
        with connection.cursor() as cursor:
            cursor.execute(statement, facts | more)
            return list(cursor.fetchall())


def _describe(rows: Iterable[_Row], pool: Pool, reserved: Mapping[str, tuple[int, int]]) -> list[GpuDevice]:
    there = list(rows)
    groups = slices.nvlink_groups({row.uuid: json.loads(row.links) for row in there})
    devices = []
    for row in there:
        core, memory_mib = reserved.get(row.uuid, (0, 0))
        devices.append(
            GpuDevice(
                uuid=row.uuid,
                index=row.place,
                model=row.model,
                memory_mib=row.memory_mib,
                core_left=WHOLE - int(row.core_held) - core,
                memory_left_mib=row.memory_mib - int(row.memory_held_mib) - memory_mib,
                driver_version=row.driver_version,
                pool=pool.name,
                nvlink=groups[row.uuid],
                taints=taints_of(row.unhealthy, row.cordoned, row.fenced, row.draining, row.silent),
            )
        )
    return devices


def taints_of(
    unhealthy: str, cordoned: bool, fenced: bool, draining: bool, silent: bool
) -> tuple[tuple[str, str], ...]:
    """Return the taints of a GPU in this state, as keys and values."""
    found = []
    if unhealthy:
        found.append((slices.UNHEALTHY, unhealthy))
    if cordoned or fenced or draining:
        found.append((slices.CORDONED, "draining" if draining else "fenced" if fenced else ""))
    if silent:
        found.append((slices.UNREACHABLE, ""))
    return tuple(found)
