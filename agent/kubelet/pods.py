"""Whose devices are these? The kubelet's own list says; nothing is told from numbers or from order.

`Allocate` names no pod, and while it runs the kubelet has not yet noted who gets the devices. So it answers with a name
that follows from the ids: a CDI device that does not exist yet. Before the container is created the kubelet calls
`PreStartContainer` with the same ids, and by then its list names the container that has them. The claim of that
container is then made known to the runtime under that name.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import structlog

from agent import wire
from agent.kubelet import calls, checkpoint
from agent.kubelet.devices import CORE
from agent.kubelet.proto import podresources_pb2 as resources
from agent.launch import authorization
from agent.launch.methods import Ways
from agent.node import Node
from agent.settings import Library

log = structlog.get_logger()

# The kubelet gives up after 30 s, and tries again a while later.
PATIENCE_SECONDS = 25.0
ANSWER_SECONDS = 1.0
# A new claim's limits are in force some milliseconds after the pod is bound.
LOOK_SECONDS = 0.1


class NotAdmitted(Exception):
    """The container may not start; the message is what the pod's events will say."""


def device_name(ids: Iterable[str]) -> str:
    """The CDI device of whoever has exactly these devices; the kubelet gives them in any order."""
    return "pod-" + hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:32]


class Pods:
    """Lets the containers of this node in under their claims. The event loop's."""

    def __init__(
        self,
        socket: Path,
        *,
        directory: Path,
        node: Node,
        ways: Ways,
        library: Library,
        minors: Callable[[], dict[str, int]],
    ) -> None:
        self._socket, self._directory = socket, directory
        self._node = node
        self._ways = ways
        self._library = library
        self._minors = minors
        # Containers that were let in: they are in no need of devices.
        self.served: set[wire.Pod] = set()

    async def let_in(self, ids: Collection[str], *, within_seconds: float | None) -> None:
        """Give the container that has these cores its claim, as soon as that is in force. Raises NotAdmitted.

        `within_seconds`: how long the kubelet waits; it is to hear why before it gives up.
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
                raise NotAdmitted(f"gpucloud: {_named(pod)}: {why}.")
            await asyncio.sleep(LOOK_SECONDS)

    def _try(self, pod: wire.Pod, ids: Collection[str]) -> str:
        """Let it in, or say why not yet."""
        assignments = self._node.desired.assignments if self._node.desired else []
        named = [one for one in assignments if one.present and one.pod == pod]
        # A StatefulSet's next pod has the name of the one before, whose claim may not be released yet.
        uid = checkpoint.pod_uid(self._directory, CORE, ids)
        wanted = [one for one in named if not uid or one.pod_uid in ("", uid)]
        claims = {one.claim_uid for one in wanted}
        if named and not wanted:
            return f"claim {named[0].claim_uid} is an older pod's of that name; its own is not placed yet"
        if not wanted:
            return "no claim is placed for it on this node; is it scheduled by gpucloud's scheduler?"
        if len(claims) > 1:
            return f"claims {', '.join(sorted(claims))} are all for it; the older pods' must be released first"
        refusal = authorization.unready(self._node, self._library, wanted)
        if refusal is not None:
            return refusal.detail.rstrip(".")
        [claim_uid] = claims
        try:
            # Who the container's programs will be is the image's to say, and the page is nobody else's to see.
            self._node.holdings[claim_uid].share()
        except OSError as error:
            return f"its usage page cannot be shared: {error}"
        self._ways.name(claim_uid, device_name(ids))
        self._ways.keep(self._node, self._minors())
        if self._ways.problem is not None:
            return self._ways.problem.rstrip(".")
        self.served = {one for one in self.served if any(it.pod == one for it in assignments)} | {pod}
        log.info("container-admitted", namespace=pod.namespace, pod=pod.name, container=pod.container, claim=claim_uid)
        return ""


def owner(listed: resources.ListPodResourcesResponse, ids: frozenset[str]) -> wire.Pod | None:
    """The one container that has exactly these cores; None where the kubelet names none, or several."""
    found = [
        wire.Pod(namespace=pod.namespace, name=pod.name, container=container.name)
        for pod in listed.pod_resources
        for container in pod.containers
        if ids == {one for each in container.devices if each.resource_name == CORE for one in each.device_ids}
    ]
    return found[0] if len(found) == 1 else None


def _named(pod: wire.Pod | None) -> str:
    return "a container" if pod is None else f"container {pod.container} of pod {pod.namespace}/{pod.name}"
