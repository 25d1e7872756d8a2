"""The containers of this node and their devices, by the kubelet's own list; never guessed from numbers or order.

`Allocate` names no pod, and while it runs the kubelet has not yet recorded the owner of the devices. So it answers with
a name that follows from the ids: a CDI device that does not exist yet. Before the container is created the kubelet
calls `PreStartContainer` with the same ids, and by then its list names the container that has them. The claim of that
container is then made known to the runtime under that name.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from agent import wire
from agent.kubelet import calls, checkpoint
from agent.kubelet.devices import CORE
from agent.kubelet.proto import podresources_pb2 as resources
from agent.launch import authorization
from agent.launch.methods import LaunchMethods
from agent.logs import log
from agent.node import Node
from agent.settings import Library

# The kubelet gives up after 30 s, and tries again a while later.
PATIENCE_SECONDS = 25.0
ANSWER_SECONDS = 1.0
# A new claim's limits are in force some milliseconds after the pod is bound.
LOOK_SECONDS = 0.1


class NotAdmitted(Exception):
    """Refusal to start the container; the message appears in the pod's events."""


def device_name(ids: Iterable[str]) -> str:
    """Return the CDI device name for exactly these devices; the kubelet passes them in any order."""
    return "pod-" + hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:32]


class Pods:
    """The containers of this node that are let in under their claims. The event loop's."""

    def __init__(
        self,
        socket: Path,
        *,
        directory: Path,
        node: Node,
        launch_methods: LaunchMethods,
        library: Library,
        minors: Callable[[], dict[str, int]],
    ) -> None:
        self._socket, self._directory = socket, directory
        self._node = node
        self._launch_methods = launch_methods
        self._library = library
        self._minors = minors

    async def find_owners(self, resource: str) -> set[wire.Pod]:
        """Return the containers that have devices of this resource; none if the kubelet does not answer."""
        try:
            listed = await calls.list_pods(self._socket)
        except calls.Unreachable as error:
            log.warning("pods-not-listed", reason=str(error))
            return set()
        return {pod for pod, ids in _devices(listed, resource) if ids}

    async def let_in(self, ids: Collection[str], *, within_seconds: float | None) -> None:
        """Give the container that has these cores its claim, as soon as that is in force. Raises NotAdmitted.

        `within_seconds`: how long the kubelet waits; it must get the reason before it gives up.
        """
        patience = (
            PATIENCE_SECONDS if within_seconds is None else min(PATIENCE_SECONDS, within_seconds - ANSWER_SECONDS)
        )
        end = time.monotonic() + patience
        pod: wire.Pod | None = None
        why = ""
        while True:
            try:
                pod = pod or owner(await calls.list_pods(self._socket), frozenset(ids))
                why = (
                    self._try(pod, ids) if pod is not None else "the kubelet names no container that has these devices"
                )
            except calls.Unreachable as error:
                why = f"the kubelet does not say whose devices these are: {error}"
            if not why:
                return
            if time.monotonic() >= end:
                raise NotAdmitted(f"gpucloud: {_describe(pod)}: {why}.")
            await asyncio.sleep(LOOK_SECONDS)

    def _try(self, pod: wire.Pod, ids: Collection[str]) -> str:
        """Let it in, or return the reason why not yet."""
        assignments = self._node.desired.assignments if self._node.desired else []
        named = [one for one in assignments if one.present and one.pod == pod]
        # A StatefulSet's next pod has the name of the one before, whose claim may not be released yet.
        uid = checkpoint.pod_uid(self._directory, CORE, ids)
        wanted = [one for one in named if not uid or one.pod_uid in ("", uid)]
        claims = {one.claim_uid for one in wanted}
        if named and not wanted:
            return f"claim {named[0].claim_uid} is an older pod's of that name; its own is not placed yet"
        if not wanted:
            return (
                "no claim is placed for it on this node: the list of its cluster's pods in gpucloud says why "
                "(no tenant, no quota, no room); a pod that is not listed was placed by another scheduler"
            )
        if len(claims) > 1:
            return f"claims {', '.join(sorted(claims))} are all for it; the older pods' must be released first"
        refusal = authorization.find_obstacle(self._node, self._library, wanted)
        if refusal is not None:
            return refusal.detail.rstrip(".")
        [claim_uid] = claims
        try:
            # The image decides the user of the container's programs, and no other container sees the page.
            self._node.runtimes[claim_uid].share()
        except OSError as error:
            return f"its usage page cannot be shared: {error}"
        self._launch_methods.name(claim_uid, device_name(ids))
        self._launch_methods.keep(self._node, self._minors())
        if self._launch_methods.problem is not None:
            return self._launch_methods.problem.rstrip(".")
        log.info("container-admitted", namespace=pod.namespace, pod=pod.name, container=pod.container, claim=claim_uid)
        return ""


def owner(listed: resources.ListPodResourcesResponse, ids: frozenset[str]) -> wire.Pod | None:
    """Return the one container that has exactly these cores; None if the kubelet names none, or several."""
    found = [pod for pod, own in _devices(listed, CORE) if own == ids]
    return found[0] if len(found) == 1 else None


def _devices(listed: resources.ListPodResourcesResponse, resource: str) -> Iterator[tuple[wire.Pod, set[str]]]:
    """Yield each container with its devices of this resource."""
    for pod in listed.pod_resources:
        for container in pod.containers:
            ids = {one for each in container.devices if each.resource_name == resource for one in each.device_ids}
            yield wire.Pod(namespace=pod.namespace, name=pod.name, container=container.name), ids


def _describe(pod: wire.Pod | None) -> str:
    return "a container" if pod is None else f"container {pod.container} of pod {pod.namespace}/{pod.name}"
