"""The filter: by gpu-admission's rules, or by the pool's own policy and the ledger.

One decision at a time for each cluster, as each rests on what the ones before it took. What was decided is written to
the pod before it is answered, so a decision is lost only with its pod. kube-scheduler asks again whenever something
went wrong after it: then what this same pod was promised is free for it once more. The original refuses such a pod for
ever ("had been predicated"), and with `strict` so do we.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

import msgspec

from apps.clusters.core import gpu_admission
from apps.clusters.core.gpu_admission import Chosen, View
from apps.clusters.core.quantities import NotAQuantity
from apps.clusters.extender.bodies import Args, NotUnderstood, Sized, args, filter_result
from apps.clusters.kube.client import Client, Refused, Unreachable
from apps.clusters.kube.mirror import Mirror
from apps.clusters.kube.objects import Pod
from apps.clusters.kube.pods import PodState, parse_pod

logger = logging.getLogger(__name__)

# As the original has it: a refusal that may pass is tried again so often, so long after each other.
TRIES, PAUSE_SECONDS = 10, 1.0
# So many nodes are tried where the pod cannot be written to: the others wait meanwhile, and there may be thousands.
MOST_FAILED_WRITES = 3
# How often a node is looked at anew on which others were quicker.
MOST_LOOKS = 3
# One text for all such nodes: kube-scheduler counts nodes by their texts, and tells each text in the pod's event.
BESIDES = "; what gpucloud keeps from pods there counts too: claims, reservations, a node or GPU that takes nothing new"
QUICKER = "others were quicker to take its GPUs: try again"
# By our own rules: whole decisions, as (node, GPUs), or why there is none.
Choose = Callable[[PodState, list[str]], "tuple[str, Chosen] | str"]


class NoLedger(Exception):
    """The database does not answer, so nothing can be promised."""


class Promises(Protocol):
    """What pods are chosen for, in the ledger: `extender.promises`. Both raise nothing but NoLedger."""

    def keep(self, pod: PodState, node: str, chosen: Chosen) -> bool:
        """Promise the pod these GPUs, and only these; False where others were quicker: what is left is known then."""

    def withdraw(self, pod: PodState) -> None:
        """The pod could not be told."""


@dataclass
class Extended:
    """A cluster as its extender knows it."""

    name: str
    client: Client
    mirror: Mirror
    strict: bool = False
    # None: by gpu-admission's rules.
    choose: Choose | None = None
    # None: nothing of this cluster is in our ledger.
    promises: Promises | None = None

    def __post_init__(self) -> None:
        self.lock = threading.Lock()


def answer(cluster: Extended, body: bytes) -> bytes:
    """The answer to a filter request; whatever is wrong with it, in `Error`."""
    try:
        asked = args(body)
        pod = parse_pod(asked.pod)
    except (NotUnderstood, NotAQuantity) as error:
        return filter_result(None, None, None, error=str(error))
    if not pod.wants_gpu:
        return filter_result(asked.raw_nodes, asked.node_names, None)
    if cluster.strict and gpu_admission.is_predicated(pod.annotations):
        return filter_result(None, None, None, error=f"pod {pod.name} had been predicated!")
    there = cluster.mirror.pod(pod.key)
    if there is not None and there.bound_to and pod.uid in ("", there.uid):
        # kube-scheduler asks of no such pod; whoever does would have a running one's GPUs written anew.
        return filter_result(None, None, None, error=f"pod {pod.name} is bound to {there.bound_to} already")
    with cluster.lock:
        try:
            return _Decision(cluster, pod, asked).answer()
        except NotAQuantity as error:
            return filter_result(None, None, None, error=str(error))
        except NoLedger as error:
            logger.warning("pod %s/%s is promised nothing: %s", *pod.key, error)
            return filter_result(None, None, None, error="gpucloud's database does not answer: try again")


class _Decision:
    """One pod's. The nodes that were asked about, and why each but one is not to be."""

    def __init__(self, cluster: Extended, pod: PodState, asked: Args) -> None:
        self.cluster, self.pod, self.asked = cluster, pod, asked
        self.failed: dict[str, str] = {}
        self.failed_writes = 0
        self.sizes: list[Sized] = []

    def answer(self) -> bytes:
        # A pod that is asked about again may use what it was promised before.
        self.sizes = self._sizes()
        views = self.cluster.mirror.views(self.sizes, but=self.pod.key)
        if self.cluster.choose is None:
            return self._answer(self._first_that_fits(views))
        for _ in range(MOST_LOOKS):
            found = self.cluster.choose(self.pod, [view.name for view in views])
            for view in views:
                self.failed[view.name] = found if isinstance(found, str) else self._matched_elsewhere
            if isinstance(found, str):
                break
            node, chosen = found
            if self._promised(node, chosen):
                return self._answer(node if self._write(node, chosen) else None)
            self.failed[node] = QUICKER
        return self._answer(None)

    @property
    def _matched_elsewhere(self) -> str:
        return f"pod {self.pod.uid} has already been matched to another node"

    def _sizes(self) -> list[Sized]:
        sizes = self.asked.nodes
        if sizes is None:
            sizes = self.cluster.mirror.sizes(self.asked.node_names or ())
        self.failed |= {name: "no GPU device" for name, core, _ in sizes if core <= 0}
        return [size for size in sizes if size[1] > 0]

    def _first_that_fits(self, views: list[View]) -> str | None:
        found = None
        for view, chosen in gpu_admission.tries(views, self.pod.containers):
            if chosen is None:
                self.failed[view.name] = self._no_match(view.name)
            elif self._settle(view.name, chosen):
                found = view.name
                break
        if found is not None:
            others = dict.fromkeys((view.name for view in views if view.name != found), self._matched_elsewhere)
            self.failed = others | self.failed
        return found

    def _no_match(self, node: str) -> str:
        """In the original's words; what it knows nothing of, in ours."""
        besides = BESIDES if self.cluster.mirror.others_on(node) else ""
        return f"pod {self.pod.uid} does not match with this node{besides}"

    def _settle(self, node: str, chosen: Chosen | None) -> bool:
        """Promise and write; where others were quicker, whatever else of the node fits."""
        for _ in range(MOST_LOOKS):
            if chosen is None:
                self.failed[node] = self._no_match(node)
                return False
            if self._promised(node, chosen):
                return self._write(node, chosen)
            size = next(size for size in self.sizes if size[0] == node)
            chosen = self.cluster.mirror.view(*size, but=self.pod.key).fit(self.pod.containers)
        self.failed[node] = QUICKER
        return False

    def _promised(self, node: str, chosen: Chosen) -> bool:
        return self.cluster.promises is None or self.cluster.promises.keep(self.pod, node, chosen)

    def _write(self, node: str, chosen: Chosen) -> bool:
        """Write it to the pod; False, and the node is no longer one, where that fails."""
        self.failed[node] = "update pod annotation failed"
        if self.failed_writes >= MOST_FAILED_WRITES:
            return False
        values = gpu_admission.annotations(node, chosen, time_ns=time.time_ns())
        for attempt in range(TRIES):
            try:
                self.cluster.mirror.take(annotate(self.cluster.client, self.pod, values))
                del self.failed[node]
                return True
            except Refused as error:
                logger.warning("pod %s/%s is not annotated: %s", *self.pod.key, error)
                if not error.worth_another_try or attempt == TRIES - 1:
                    break
                time.sleep(PAUSE_SECONDS)
            except Unreachable as error:
                logger.warning("pod %s/%s is not annotated: %s", *self.pod.key, error)
                # Each of the others would wait for the same answer.
                self.failed_writes = MOST_FAILED_WRITES
                break
        self.failed_writes += 1
        if self.cluster.promises is not None:
            self.cluster.promises.withdraw(self.pod)
        return False

    def _answer(self, node: str | None) -> bytes:
        found = [] if node is None else [node]
        if self.asked.raw_nodes is None:
            return filter_result(None, found, self.failed)
        assert self.asked.nodes is not None
        both = zip(self.asked.raw_nodes, self.asked.nodes, strict=True)
        names = None if self.asked.node_names is None else found
        return filter_result([raw for raw, (name, _, _) in both if name == node], names, self.failed)


def annotate(client: Client, pod: PodState, values: Mapping[str, str | None]) -> Pod:
    """The pod as it is once these annotations are written; None removes one. Raises Unreachable, Refused.

    Of the pod that was asked about only: another of the same name is refused by its uid.
    """
    metadata = {"uid": pod.uid, "annotations": values} if pod.uid else {"annotations": values}
    path = path_of(pod.namespace, pod.name)
    return msgspec.json.decode(client.patch(path, {"metadata": metadata}), type=Pod)


def path_of(namespace: str, name: str) -> str:
    """Of a pod, whose names came in a request: they lead nowhere else."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"
