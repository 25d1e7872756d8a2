"""Publication of a cluster's ResourceSlices: what the ledger has left of each GPU, as soon as it changes."""

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from django.conf import settings

from agent.wire import DRA_DRIVER as DRIVER
from apps.clusters.admission.policy import SERVE
from apps.clusters.core.devices import DEVICE_CLASS, class_of_profile
from apps.clusters.dra import instances, partitions, slices
from apps.clusters.dra.devices import DeviceReader
from apps.clusters.kube.client import Refused
from apps.clusters.models import Cluster

logger = logging.getLogger(__name__)

CONFLICT, MISSING = 409, 404
ABSENT_SECONDS = 30.0
# Between two looks for the DeviceClasses.
CLASS_SECONDS = 30.0
CLASSES = f"/apis/{slices.GROUP}/deviceclasses"


class Wanted(NamedTuple):
    """A slice as it is to be: the node, what it says, and how it is made of the node's uid."""

    node: str
    facts: object
    make: Callable[[str], dict[str, Any]]


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
        # By the slice's name.
        self._written: dict[str, Wanted] = {}
        self._versions: dict[str, int] = {}
        # Uids of the cluster's nodes; a slice ends with its node.
        self._nodes: dict[str, str] = {}
        # Moments before which a node is not looked for, or a slice not written, again.
        self._absent: dict[str, float] = {}
        # Slices of an earlier process or of another hand: each is removed if it is not wanted.
        self._inherited: set[str] = set()
        # The moment at which the DeviceClasses are looked for again: somebody may remove one.
        self._class_due = 0.0

    def compare(self, name: str, version: str) -> None:
        """Write the slice again if somebody else has changed or removed it: its version is newer than ours."""
        if int(version) > self._versions.get(name, 0):
            if name in self._written:
                self._inherited.add(name)
            self._forget(name)

    def forget_others(self, there: Collection[str]) -> None:
        """Write all slices but these again."""
        for name in self._written.keys() - set(there):
            self._forget(name)

    def inherit(self, names: Collection[str]) -> None:
        """Remove these slices unless they are wanted: their publisher may have ended long ago."""
        self._inherited |= set(names)

    def _forget(self, name: str) -> None:
        if (was := self._written.pop(name, None)) is not None:
            self._nodes.pop(was.node, None)
        self._versions.pop(name, None)

    def publish(self) -> int:
        """Write the slices that changed; return their number. Raises Unreachable, Refused."""
        divided = instances.read(self._cluster)
        wanted = self._read_wanted(divided)
        if wanted and time.monotonic() >= self._class_due:
            self._make_classes(partitions.profiles_of(gpu for gpus in divided.values() for gpu in gpus))
        written = 0
        for name, one in wanted.items():
            there = self._written.get(name)
            if (there is None or there.facts != one.facts) and not self._is_absent(name, one.node):
                written += self._write(name, one)
        for name in (self._written.keys() | self._inherited) - wanted.keys():
            self._remove(name)
        self._inherited.clear()
        return written

    def _read_wanted(self, divided: Mapping[str, Sequence[partitions.MigDevice]]) -> dict[str, Wanted]:
        """Return the slices by name: one of each node's GPUs, and two of each GPU in MIG mode."""
        found = {
            slices.name_slice(node): Wanted(node, gpus, partial(slices.slice_of, node, gpus=gpus))
            for node, gpus in self._reader.read().items()
        }
        for node, gpu in ((node, gpu) for node, gpus in divided.items() for gpu in gpus):
            for part, make in partitions.PARTS.items():
                found[partitions.name_slice(node, gpu, part)] = Wanted(node, gpu, partial(make, node, gpu=gpu))
        return found

    def withdraw(self, api: ListingApi) -> None:
        """Remove all slices of the cluster's pool, and the DeviceClasses if no other pool's are there."""
        found, _ = api.list(slices.PATH, fieldSelector=f"spec.driver={DRIVER}")
        there = [json.loads(bytes(item)) for item in found]
        mine = [item for item in there if slices.is_of_pool(item, self._cluster.pool.name)]
        paths = [f"{slices.PATH}/{item['metadata']['name']}" for item in mine]
        if len(mine) == len(there):
            profiles = {name for item in mine for name in partitions.profiles_in(item)}
            names = (DEVICE_CLASS, *(class_of_profile(name) for name in sorted(profiles)))
            paths += [f"{CLASSES}/{name}" for name in names]
        for one in paths:
            self._delete(one)

    def _make_classes(self, profiles: Collection[str]) -> None:
        """Make the DeviceClasses that are missing. One that is there stays: an administrator may have changed it."""
        as_resource = settings.ADMISSION_MIG == SERVE
        of_profiles = [partitions.class_of(name, as_resource=as_resource) for name in sorted(profiles)]
        for one in [slices.device_class(), *of_profiles]:
            if self._api.find(f"{CLASSES}/{one['metadata']['name']}") is None:
                self._make_class(one)
        self._class_due = time.monotonic() + CLASS_SECONDS

    def _make_class(self, one: Mapping[str, Any]) -> None:
        """Make one DeviceClass. One that the server refuses, such as for a name, keeps back no slices."""
        try:
            self._api.post(CLASSES, one)
        except Refused as error:
            if error.status != CONFLICT and error.worth_another_try:
                raise
            logger.warning("DeviceClass %s: %s", one["metadata"]["name"], error)

    def _is_absent(self, *keys: str) -> bool:
        now = time.monotonic()
        return any(self._absent.get(key, 0.0) >= now for key in keys)

    def _write(self, name: str, one: Wanted) -> bool:
        """Write one slice; return False if the cluster has no such node."""
        node = one.node
        if node not in self._nodes:
            found = self._api.find(f"/api/v1/nodes/{node}")
            if found is None:
                # Of another cluster with the same pool, or still to come.
                self._absent[node] = time.monotonic() + ABSENT_SECONDS
                return False
            self._nodes[node] = str(found["metadata"]["uid"])
        thing = one.make(self._nodes[node])
        path = f"{slices.PATH}/{name}"
        try:
            there = self._api.find(path)
            if there is None:
                answer = self._api.post(slices.PATH, thing)
            else:
                thing["metadata"]["resourceVersion"] = there["metadata"]["resourceVersion"]
                answer = self._api.put(path, thing)
        except Refused as error:
            if error.status in (CONFLICT, MISSING):
                logger.info("slice %s is written again: %s", name, error.detail)
                return False
            if error.worth_another_try:
                raise
            # One slice that the API server does not take must not keep back all others.
            logger.warning("slice %s: %s", name, error.detail)
            self._absent[name] = time.monotonic() + ABSENT_SECONDS
            return False
        self._written[name] = one
        self._versions[name] = int(json.loads(answer)["metadata"]["resourceVersion"])
        return True

    def _remove(self, name: str) -> None:
        self._delete(f"{slices.PATH}/{name}")
        self._forget(name)

    def _delete(self, path: str) -> None:
        try:
            self._api.delete(path)
        except Refused as error:
            if error.status != MISSING:
                raise
