"""The kubelet's ResourceClaims and the claims of the ledger that serve them.

kube-scheduler allocates the devices, the control plane makes a claim of the ledger for them, and the node's desired
state brings it with the ResourceClaim's uid. Nothing is stored here: every answer follows from the desired state, so an
agent that was killed answers as before. Unpreparing changes nothing either: the ledger releases the claim when its
ResourceClaim is deallocated, and the desired state then ends it here.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Iterable

import grpc

from agent import wire
from agent.kubelet.calls import Context
from agent.kubelet.proto import dra_pb2 as pb
from agent.launch import authorization
from agent.launch.methods import LaunchMethods
from agent.logs import log
from agent.metrics import Prepares
from agent.node import Node
from agent.settings import Library

# The kubelet waits 45 s (1.36: defaultClientCallTimeout in pkg/kubelet/cm/dra/plugin). After a refusal it tries again
# only at the pod's next sync, a minute or more later.
PATIENCE_SECONDS = 40.0
ANSWER_SECONDS = 1.0
# A change of claims is noticed at once; this is for anything else, like a library that is back.
LOOK_SECONDS = 0.5
# A pod names a few, and a node has no more assignments.
MOST_CLAIMS = wire.MAX_ASSIGNMENTS
UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NOT_PLACED = (
    "no claim is placed for it on this node: gpucloud has not seen its allocation yet, or the ledger refuses it "
    "(no room, no quota, no tenant for its namespace); its cluster's page in gpucloud says which"
)


class NotPrepared(Exception):
    """Obstacle for a claim; the message appears in the pod's events."""


class Driver:
    """The answers to the kubelet's requests. The event loop's."""

    def __init__(
        self,
        *,
        node: Node,
        launch_methods: LaunchMethods,
        library: Library,
        minors: Callable[[], dict[str, int]],
        prepares: Prepares,
    ) -> None:
        self._node = node
        self._launch_methods = launch_methods
        self._library = library
        self._minors = minors
        self._prepares = prepares

    async def prepare(
        self, request: pb.NodePrepareResourcesRequest, context: Context
    ) -> pb.NodePrepareResourcesResponse:
        """Return each claim's devices as soon as its limits are in force, or in words why they are not."""
        claims = {one.uid: one for one in request.claims}
        if len(claims) > MOST_CLAIMS:
            words = f"gpucloud: {len(claims)} claims are more than a node can have."
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, words)
        end = time.monotonic() + _patience(context.time_remaining())
        answers = await asyncio.gather(*(self._prepare(one, end) for one in claims.values()))
        return pb.NodePrepareResourcesResponse(claims=dict(zip(claims, answers, strict=True)))

    async def unprepare(
        self, request: pb.NodeUnprepareResourcesRequest, context: Context
    ) -> pb.NodeUnprepareResourcesResponse:
        """Confirm every claim, known or not: nothing was kept for it."""
        for one in request.claims:
            log.info("claim-unprepared", resource_claim=_name(one))
        return pb.NodeUnprepareResourcesResponse(
            claims={one.uid: pb.NodeUnprepareResourceResponse() for one in request.claims}
        )

    async def _prepare(self, claim: pb.Claim, end: float) -> pb.NodePrepareResourceResponse:
        begun = time.monotonic()
        try:
            if UID.fullmatch(claim.uid) is None:
                raise NotPrepared(f"{claim.uid[:63]!r} is no uid")
            devices, possible = await self._wait(claim, begun, end)
        except NotPrepared as error:
            self._prepares.refusals += 1
            log.warning("claim-not-prepared", resource_claim=_name(claim), reason=str(error))
            return pb.NodePrepareResourceResponse(error=f"gpucloud: ResourceClaim {_name(claim)}: {error}.")
        waited, worked = possible - begun, time.monotonic() - possible
        self._prepares.note(waited_seconds=waited, worked_seconds=worked)
        log.info(
            "claim-prepared",
            resource_claim=_name(claim),
            waited_ms=round(waited * 1e3, 1),
            worked_ms=round(worked * 1e3, 1),
        )
        return pb.NodePrepareResourceResponse(devices=devices)

    async def _wait(self, claim: pb.Claim, begun: float, end: float) -> tuple[list[pb.Device], float]:
        """Return the claim's devices, and since when it could be prepared. Raises NotPrepared."""
        possible = begun
        while True:
            changed = self._launch_methods.changed
            try:
                return self._try(claim), possible
            except NotPrepared:
                tried = time.monotonic()
                if tried >= end:
                    raise
            # Not `wait_for`, whose task of its own would let others go first.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(LOOK_SECONDS, end - tried)):
                    await changed.wait()
            # Until then it was the ledger's time, or the connection's.
            possible = max(tried, self._launch_methods.changed_at)

    def _try(self, claim: pb.Claim) -> list[pb.Device]:
        """Return the claim's devices, ready for its containers. Raises NotPrepared."""
        assignments = self._node.desired.assignments if self._node.desired else []
        named = [one for one in assignments if one.resource_claim is not None and one.resource_claim.uid == claim.uid]
        wanted = [one for one in named if one.present]
        if named and not wanted:
            raise NotPrepared(f"claim {named[0].claim_uid}, which was for it, is being released")
        if not wanted:
            raise NotPrepared(NOT_PLACED)
        uids = {one.claim_uid for one in wanted}
        if len(uids) > 1:
            raise NotPrepared(f"claims {', '.join(sorted(uids))} are all for it; the older ones must be released first")
        [claim_uid] = uids
        refusal = authorization.find_obstacle(self._node, self._library, wanted)
        if refusal is not None:
            raise NotPrepared(refusal.detail.rstrip("."))
        try:
            # The image decides the user of a container's programs, and no other container sees the page.
            self._node.runtimes[claim_uid].share()
        except OSError as error:
            raise NotPrepared(f"its usage page cannot be shared: {error}") from error
        if not self._launch_methods.is_kept(claim_uid):
            self._launch_methods.keep(self._node, self._minors())
        if not self._launch_methods.is_kept(claim_uid):
            raise NotPrepared((self._launch_methods.problem or "its CDI device is not written").rstrip("."))
        return describe_devices([one for each in wanted if (one := each.resource_claim) is not None], claim_uid)


def describe_devices(parts: Iterable[wire.ResourceClaim], claim_uid: str) -> list[pb.Device]:
    """Return the devices of a ResourceClaim that this claim serves.

    The claim's CDI device brings all of its GPUs, so it comes with the first device only. That one serves every request
    of the ResourceClaim: a container may name a single request, and gets the CDI devices of that request alone.
    """
    found = sorted(parts, key=lambda one: (one.request, one.pool, one.device, one.share_id))
    # Of "gpu/small", a choice among several, the containers name "gpu".
    requests = [one.request.partition("/")[0] for one in found]
    devices = []
    for one, request in zip(found, requests, strict=True):
        device = pb.Device(request_names=[request], pool_name=one.pool, device_name=one.device)
        if one.share_id:
            device.share_id = one.share_id
        devices.append(device)
    devices[0].request_names[:] = dict.fromkeys(requests)
    devices[0].cdi_device_ids.append(f"{wire.CDI_KIND}={claim_uid}")
    return devices


def _patience(within_seconds: float | None) -> float:
    """Return how long to wait if the kubelet waits so long: it must get the reason before it gives up."""
    return PATIENCE_SECONDS if within_seconds is None else min(PATIENCE_SECONDS, within_seconds - ANSWER_SECONDS)


def _name(claim: pb.Claim) -> str:
    return f"{claim.namespace[:63]}/{claim.name[:253]}"
