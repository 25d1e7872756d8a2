"""Publication of a cluster's ResourceSlices: what the ledger has left of each GPU, as soon as it changes."""

import json
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from agent.wire import DRA_DRIVER as DRIVER
from apps.clusters.core.devices import DEVICE_CLASS
from apps.clusters.dra import slices
from apps.clusters.dra.devices import DeviceReader
from apps.clusters.dra.slices import GpuDevice
from apps.clusters.kube.client import Refused
from apps.clusters.models import Cluster

logger = logging.getLogger(__name__)

CONFLICT, MISSING = 409, 404
ABSENT_SECONDS = 30.0
# Between two looks for the DeviceClass.
CLASS_SECONDS = 30.0


class Api(Protocol):
    """Client of the cluster."""

    def find(self, path: str) -> dict[str, Any] | None: ...
    def post(self, path: str, body: Mapping[str, Any]) -> bytes: ...
    def put(self, path: str, body: Mapping[str, Any]) -> bytes: ...
    def delete(self, path: str) -> bytes: ...


class ListingApi(Api, Protocol):
    """Client that lists, too."""

    def list(self, path: str, **query: str) -> tuple[Sequence[Any], str]: ...


class Publisher:
    """The publisher of one cluster's slices; it remembers what it has written."""

    def __init__(self, cluster: Cluster, api: Api) -> None:
        self._cluster, self._reader, self._api = cluster, DeviceReader(cluster), api
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
        wanted = self._reader.read()
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

    def withdraw(self, api: ListingApi) -> None:
        """Remove all slices of the cluster's pool, and the DeviceClass if no other pool's are there."""
        found, _ = api.list(slices.PATH, fieldSelector=f"spec.driver={DRIVER}")
        there = [json.loads(bytes(item)) for item in found]
        mine = [item for item in there if slices.is_of_pool(item, self._cluster.pool.name)]
        paths = [f"{slices.PATH}/{item['metadata']['name']}" for item in mine]
        if len(mine) == len(there):
            paths.append(f"/apis/{slices.GROUP}/deviceclasses/{DEVICE_CLASS}")
        for one in paths:
            self._delete(one)

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
        self._delete(f"{slices.PATH}/{slices.name_slice(node)}")
        self._forget(node)

    def _delete(self, path: str) -> None:
        try:
            self._api.delete(path)
        except Refused as error:
            if error.status != MISSING:
                raise
