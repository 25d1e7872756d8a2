"""The extender's filter verb: by gpu-admission's rules, or by the pool's policy and the ledger.

Each cluster makes one decision at a time, because each depends on those before it. A decision is written to the pod
before it is answered, so it is lost only with its pod. While it is written, others are decided about, and the pod
counts with its choice. Only a gang is written in one go, because pods between its own could take its room.
kube-scheduler asks again whenever a later step failed: then the pod's own promise is free for it once more. The
original refuses such a pod for ever ("had been predicated"), and so does this module with `strict`.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from urllib.parse import quote

import msgspec

from apps.clusters.core import gpu_admission
from apps.clusters.core.gpu_admission import Chosen, View
from apps.clusters.core.quantities import NotAQuantity
from apps.clusters.extender import gangs
from apps.clusters.extender.bodies import Args, NotUnderstood, Sized, args, filter_result
from apps.clusters.extender.cluster import Extended, NoLedger
from apps.clusters.extender.selecting import restriction
from apps.clusters.formats.wishes import selection_of
from apps.clusters.kube.client import Client, Refused, Unreachable
from apps.clusters.kube.objects import Pod
from apps.clusters.kube.pods import PodState, chosen_for, parse_pod

logger = logging.getLogger(__name__)

# As in the original: a transient refusal is retried so many times, with this pause between attempts.
TRIES, PAUSE_SECONDS = 10, 1.0
# A longer Retry-After is not waited for: kube-scheduler asks again by itself.
MOST_PAUSE_SECONDS = 3.0
# Nodes tried while the pod cannot be written to: other pods wait meanwhile, and there may be thousands of nodes.
MOST_FAILED_WRITES = 3
# Attempts on a node whose GPUs others took meanwhile.
MOST_LOOKS = 3
# One text for all such nodes: kube-scheduler groups nodes by text and lists each text in the pod's event.
BESIDES = "; claims outside of Kubernetes, resized pods, reservations, and closed nodes and GPUs count too"
QUICKER = "others were quicker to take its GPUs: try again"


def answer(cluster: Extended, body: bytes) -> bytes:
    """Answer a filter request; errors are in `Error`."""
    try:
        asked = args(body)
        pod = parse_pod(asked.pod, sidecars=not cluster.strict)
    except (NotUnderstood, NotAQuantity) as error:
        return filter_result(None, None, None, error=str(error))
    if not pod.wants_gpu:
        return filter_result(asked.raw_nodes, asked.node_names, None)
    if cluster.strict and gpu_admission.is_predicated(pod.annotations):
        return filter_result(None, None, None, error=f"pod {pod.name} had been predicated!")
    there = cluster.mirror.pod(pod.key)
    if there is not None and there.bound_to and pod.uid in ("", there.uid):
        # kube-scheduler never asks for a bound pod; answering would overwrite a running pod's GPUs.
        return filter_result(None, None, None, error=f"pod {pod.name} is bound to {there.bound_to} already")
    with cluster.lock:
        if pod.key in cluster.written:
            return filter_result(None, None, None, error=f"pod {pod.name} is being annotated: try again")
        try:
            return _Decision(cluster, pod, asked).answer_with_gang()
        except NotAQuantity as error:
            return filter_result(None, None, None, error=str(error))
        except NoLedger as error:
            logger.warning("no promise to pod %s/%s: %s", *pod.key, error)
            return filter_result(None, None, None, error="gpucloud's database does not answer: try again")


class _Decision:
    """Decision for one pod: its candidate nodes, and the reason against each but one."""

    def __init__(self, cluster: Extended, pod: PodState, asked: Args, *, together: bool = False) -> None:
        """Take `together`, True for a pod of a gang that is placed now: no other pod is decided about meanwhile."""
        self.cluster, self.pod, self.asked, self.together = cluster, pod, asked, together
        # True once other decisions may have changed the views.
        self.outdated = False
        self.failed: dict[str, str] = {}
        self.failed_writes = 0
        self.sizes: list[Sized] = []
        self.restrict = restriction(cluster, pod)

    def answer_with_gang(self) -> bytes:
        """Place the pod, and before it as many others of its gang as must be placed together with it."""
        others = [] if self.cluster.strict else gangs.others_due(self.cluster, self.pod)
        if isinstance(others, str):
            self.failed |= {size[0]: others for size in self._sizes()}
            return self._answer(None)
        if others and (room := self._room_for([*others, self.pod])) <= len(others):
            # Nothing is written for a gang that does not fit: each write would make kube-scheduler ask again.
            why = gangs.no_room(self.pod, room)
            self.failed |= {size[0]: why for size in self._sizes()}
            return self._answer(None)
        placed: list[PodState] = []
        self.together = bool(others)
        for other in others:
            if _Decision(self.cluster, other, self.asked, together=True).place() is None:
                self._take_back(placed)
                self.failed |= {size[0]: QUICKER for size in self._sizes()}
                return self._answer(None)
            placed.append(other)
        node = self.place()
        if node is None:
            self._take_back(placed)
        return self._answer(node)

    def _room_for(self, pods: list[PodState]) -> int:
        """Return how many of these pods fit, each after those before it, without writing anything."""
        pretended: list[PodState] = []
        try:
            for pod in pods:
                found = _Decision(self.cluster, pod, self.asked).fit()
                if found is None:
                    break
                pretended.append(pod)
                self.cluster.mirror.pretend(chosen_for(pod, *found))
            return len(pretended)
        finally:
            for pod in pretended:
                self.cluster.mirror.pretend(pod)

    def _take_back(self, placed: list[PodState]) -> None:
        """Take the choice back from pods whose gang does not fit."""
        for pod in placed:
            written = self.cluster.mirror.pod(pod.key) or pod
            try:
                self.cluster.mirror.take(
                    annotate(self.cluster.client, written, gpu_admission.removed(written.annotations))
                )
            except (Refused, Unreachable) as error:
                logger.warning("choice for pod %s/%s could not be taken back: %s", *pod.key, error)
                continue
            if self.cluster.promises is not None:
                self.cluster.promises.withdraw(pod)

    def fit(self) -> tuple[str, Chosen] | None:
        """Return the node and the GPUs that would be chosen now; None if there are none."""
        views = self._views()
        if self.cluster.choose is not None:
            found = self.cluster.choose(self.pod, [view.name for view in views])
            return None if isinstance(found, str) else found
        fitting = gpu_admission.tries(views, self.pod.containers)
        return next(((view.name, chosen) for view, chosen in fitting if chosen is not None), None)

    def _views(self) -> list[View]:
        # A pod that is filtered again may use its own earlier promise.
        self.sizes = self._sizes()
        return [self.restrict(view) for view in self.cluster.mirror.views(self.sizes, but=self.pod.key)]

    def place(self) -> str | None:
        """Choose and promise the pod's GPUs and write them to it; return their node."""
        views = self._views()
        if self.cluster.choose is None:
            return self._first_that_fits(views)
        for _ in range(MOST_LOOKS):
            found = self.cluster.choose(self.pod, [view.name for view in views])
            for view in views:
                self.failed[view.name] = found if isinstance(found, str) else self._matched_elsewhere
            if isinstance(found, str):
                break
            node, chosen = found
            if self._promise(node, chosen):
                return node if self._write(node, chosen) else None
            self.failed[node] = QUICKER
        return None

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
        """Return the original's text, extended if claims outside of the cluster use the node."""
        besides = BESIDES if self.cluster.mirror.beside_annotations(node) else ""
        selection = selection_of(self.pod.annotations)
        wanted = f"; it accepts only GPUs of {selection}" if selection else ""
        return f"pod {self.pod.uid} does not match with this node{besides}{wanted}"

    def _settle(self, node: str, chosen: Chosen | None) -> bool:
        """Promise and write the choice; if others took it meanwhile, choose again on the same node."""
        if self.outdated:
            chosen = self._fit_again(node)
        for _ in range(MOST_LOOKS):
            if chosen is None:
                self.failed[node] = self._no_match(node)
                return False
            if self._promise(node, chosen):
                return self._write(node, chosen)
            chosen = self._fit_again(node)
        self.failed[node] = QUICKER
        return False

    def _fit_again(self, node: str) -> Chosen | None:
        size = next(size for size in self.sizes if size[0] == node)
        return self.restrict(self.cluster.mirror.view(*size, but=self.pod.key)).fit(self.pod.containers)

    def _promise(self, node: str, chosen: Chosen) -> bool:
        return self.cluster.promises is None or self.cluster.promises.keep(self.pod, node, chosen)

    def _write(self, node: str, chosen: Chosen) -> bool:
        """Annotate the pod; return False and record the failed node if that fails."""
        self.failed[node] = "update pod annotation failed"
        if self.failed_writes >= MOST_FAILED_WRITES:
            return False
        mirror = self.cluster.mirror
        # A pod that is not known yet would not count with its choice: then nobody else decides meanwhile.
        counts = mirror.choose(self.pod.key, node, chosen)
        try:
            written = self._annotated(node, chosen, apart=counts and not self.together)
        finally:
            mirror.end_choice(self.pod.key)
        if written:
            del self.failed[node]
            return True
        self.failed_writes += 1
        if self.cluster.promises is not None:
            self.cluster.promises.withdraw(self.pod)
        return False

    def _annotated(self, node: str, chosen: Chosen, *, apart: bool) -> bool:
        """Write the choice to the pod, with others decided about meanwhile if `apart`; return False if it failed."""
        values = gpu_admission.annotations(node, chosen, time_ns=time.time_ns())
        for attempt in range(TRIES):
            try:
                with self._unlocked() if apart else nullcontext():
                    # At once: the watch may report the pod's end while this thread waits for its turn.
                    self.cluster.mirror.take(annotate(self.cluster.client, self.pod, values))
                    return True
            except Refused as error:
                logger.warning("pod %s/%s could not be annotated: %s", *self.pod.key, error)
                if not error.worth_another_try or attempt == TRIES - 1 or error.pause_seconds > MOST_PAUSE_SECONDS:
                    return False
                # Other nodes are not tried after a wait: kube-scheduler asks again by itself.
                self.failed_writes = MOST_FAILED_WRITES
                with self._unlocked():
                    time.sleep(max(PAUSE_SECONDS, error.pause_seconds))
            except Unreachable as error:
                logger.warning("pod %s/%s could not be annotated: %s", *self.pod.key, error)
                # Every further attempt would wait for the same timeout.
                self.failed_writes = MOST_FAILED_WRITES
                return False
        return False

    @contextmanager
    def _unlocked(self) -> Iterator[None]:
        """Let other pods be decided about meanwhile; a second request for this one is refused."""
        self.outdated = True
        self.cluster.written.add(self.pod.key)
        self.cluster.lock.release()
        try:
            yield
        finally:
            self.cluster.lock.acquire()
            self.cluster.written.discard(self.pod.key)

    def _answer(self, node: str | None) -> bytes:
        found = [] if node is None else [node]
        if self.asked.raw_nodes is None:
            return filter_result(None, found, self.failed)
        assert self.asked.nodes is not None
        both = zip(self.asked.raw_nodes, self.asked.nodes, strict=True)
        names = None if self.asked.node_names is None else found
        return filter_result([raw for raw, (name, _, _) in both if name == node], names, self.failed)


def annotate(client: Client, pod: PodState, values: Mapping[str, str | None]) -> Pod:
    """Write these annotations and return the new pod; None removes one. Raises Unreachable, Refused.

    The uid makes the API server refuse another pod of the same name.
    """
    metadata = {"uid": pod.uid, "annotations": values} if pod.uid else {"annotations": values}
    path = path_of(pod.namespace, pod.name)
    return msgspec.json.decode(client.patch(path, {"metadata": metadata}), type=Pod)


def path_of(namespace: str, name: str) -> str:
    """Return a pod's API path; names from requests are quoted, so they cannot lead to another path."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"
