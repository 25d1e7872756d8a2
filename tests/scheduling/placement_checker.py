"""A checker of placements that uses their history alone: independent of the placement core except for its terms.

It receives each GPU's facts and every event; `complaints` lists the violations.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from apps.scheduling.core.values import GpuState, NodeState, Request

WHOLE = 100


@dataclass
class History:
    """The current contents of each GPU, and the violations so far."""

    gpus: dict[str, GpuState]
    nodes: dict[str, NodeState]
    on: dict[str, list[Request]] = field(default_factory=lambda: defaultdict(list))
    complaints: list[str] = field(default_factory=list)

    def placed(self, request: Request, uuids: tuple[str, ...]) -> None:
        """Record a placement."""
        if len(set(uuids)) != request.gpu_count:
            self.complaints.append(f"{request} has {uuids}")
        if len({self.gpus[uuid].node for uuid in uuids}) != 1:
            self.complaints.append(f"{request} is on several nodes: {uuids}")
        bound = self._bound(request)
        for uuid in uuids:
            if why := self.against(request, uuid, bound):
                self.complaints.append(f"{request} is on {uuid}: {why}")
        for uuid in uuids:
            self.on[uuid].append(request)

    def gone(self, request: Request, uuids: tuple[str, ...]) -> None:
        """Record a release."""
        for uuid in uuids:
            self.on[uuid].remove(request)

    def refused(self, request: Request) -> None:
        """Record a refusal."""
        bound = self._bound(request)
        would: dict[str, int] = defaultdict(int)
        for uuid, gpu in self.gpus.items():
            would[gpu.node] += not self.against(request, uuid, bound)
        if any(count >= request.gpu_count for count in would.values()):
            self.complaints.append(f"{request} would fit")

    def against(self, request: Request, uuid: str, bound: set[str]) -> str:
        """Return the reasons against this GPU for the request; nothing if it would fit."""
        gpu, there = self.gpus[uuid], self.on[uuid]
        if not gpu.schedulable:
            return "it is not there"
        if request.gpu_model and gpu.model not in request.gpu_model.split("|"):
            return "it is of another model"
        if any(dict(self.nodes[gpu.node].labels).get(key) != value for key, value in request.node_selector):
            return "its node has other labels"
        if sum(one.core_request for one in there) + request.core_request > WHOLE:
            return "its core is promised twice"
        if sum(one.memory_mib for one in there) + request.memory_mib > gpu.memory_mib:
            return "its memory is promised twice"
        return self._against_labels(request, uuid, bound)

    def _against_labels(self, request: Request, uuid: str, bound: set[str]) -> str:
        there = self.on[uuid]
        own = [one for one in there if one.tenant == request.tenant]
        if bound and uuid not in bound:
            return "its affinity label is elsewhere"
        if request.anti_affinity and any(one.anti_affinity == request.anti_affinity for one in own):
            return "another claim has its anti-affinity label"
        mine = (request.tenant, request.exclusion) if request.exclusion else None
        if any(((one.tenant, one.exclusion) if one.exclusion else None) != mine for one in there):
            return "exclusion"
        return ""

    def _bound(self, request: Request) -> set[str]:
        if not request.affinity:
            return set()
        wanted = (request.tenant, request.affinity)
        return {uuid for uuid, there in self.on.items() if any((one.tenant, one.affinity) == wanted for one in there)}
