"""In-memory copy of a cluster's nodes and pods, for decisions that cannot wait for the API server.

A node's view is cached until one of its pods changes: with thousands of nodes a decision only sorts views. Pods that
this process has just written are merged at once, before the watch reports them, so two pods in quick succession do not
get the same GPUs.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import chain

from apps.clusters.core.gpu_admission import WHOLE, Chosen, HeldShare, View
from apps.clusters.core.quantities import NotAQuantity
from apps.clusters.kube.objects import Node, Pod
from apps.clusters.kube.pods import Key, PodState, capacity, chosen_for, parse_pod
from apps.clusters.kube.reflector import Observation

logger = logging.getLogger(__name__)

Others = Mapping[str, tuple[HeldShare, ...]]
# Use by pods above their annotations, by node and uid.
Grown = Mapping[str, Mapping[str, tuple[HeldShare, ...]]]
# More than any GPU has: a whole GPU's memory, whatever its size.
ALL_MEMORY = 1 << 40


class Mirror:
    """Copy of one cluster, written by reflectors and read by decisions, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._nodes: dict[str, tuple[int, int]] = {}
        self._pods: dict[Key, PodState] = {}
        self._by_uid: dict[str, PodState] = {}
        self._on_node: dict[str, dict[Key, tuple[HeldShare, ...]]] = defaultdict(dict)
        self._views: dict[str, tuple[int, int, View]] = {}
        self._whole: set[str] = set()
        # Use of the nodes' GPUs by others than the cluster's pods.
        self._others: Others = {}
        # Use of the nodes' GPUs by the cluster's pods above their annotations: they were resized.
        self._grown: Grown = {}
        # Pods written by this process, until the watch reports the same version: a list may be older.
        self._taken: dict[Key, PodState] = {}
        # GPUs that are being written to a pod, and the pod as it is without them.
        self._choices: dict[Key, tuple[str, Chosen, PodState]] = {}

    @property
    def ready(self) -> bool:
        """True once nodes and pods were listed."""
        return {"pods", "nodes"} <= self._whole

    def see(self, news: Observation) -> None:
        """Apply an observation of a reflector."""
        with self._lock:
            if news.kind == "pods":
                self._see_pods(news)
            elif news.kind == "nodes":
                self._see_nodes(news)
            if news.whole:
                self._whole.add(news.kind)

    def take(self, pod: Pod) -> None:
        """Apply a pod that the API server has just returned."""
        with self._lock:
            try:
                mine = parse_pod(pod)
            except NotAQuantity as error:
                logger.warning("pod %s/%s: %s", pod.metadata.namespace, pod.metadata.name, error)
                return
            self._taken[mine.key] = mine
            self._see_pod(mine, gone=False)

    def pretend(self, pod: PodState) -> None:
        """Apply a state of a known pod that is not written, or its former state; what the watch said since stays."""
        with self._lock:
            known = self._pods.get(pod.key)
            if known is not None and (known.uid, known.version) == (pod.uid, pod.version):
                self._see_pod(pod, gone=False)

    def choose(self, key: Key, node: str, chosen: Chosen) -> bool:
        """Count the pod with these GPUs, whatever the watch says of it, until `end_choice`; False: it is not known."""
        with self._lock:
            known = self._pods.get(key)
            if known is None:
                return False
            self._choices[key] = node, chosen, known
            self._see_pod(known, gone=False)
            return True

    def end_choice(self, key: Key) -> None:
        """Count the pod as the watch, or the API server's answer to a write, says."""
        with self._lock:
            choice = self._choices.pop(key, None)
            if choice is not None and key in self._pods:
                self._see_pod(choice[2], gone=False)

    def see_others(self, others: Others, grown: Grown) -> None:
        """Replace the use of GPUs by others than the cluster's pods, and that of its pods above their annotations."""
        with self._lock:
            for name in {*self._others, *others, *self._grown, *grown}:
                if self._others.get(name) != others.get(name) or self._grown.get(name) != grown.get(name):
                    self._views.pop(name, None)
            self._others, self._grown = others, grown

    def beside_annotations(self, name: str, *, without: Collection[str] = ()) -> tuple[HeldShare, ...]:
        """Return the use of the node's GPUs that no annotation shows; of pods `without` (uids) none."""
        grown = (shares for uid, shares in self._grown.get(name, {}).items() if uid not in without)
        return (*self._others.get(name, ()), *chain.from_iterable(grown))

    def annotated(self, uid: str, index: int) -> tuple[int, int] | None:
        """Return core and memory units of this GPU that the pod's annotations show; None: the pod is not known."""
        pod = self._by_uid.get(uid)
        if pod is None:
            return None
        mine = [share for share in pod.shares if share.index == index]
        core = sum(share.core for share in mine)
        return core, ALL_MEMORY if core >= WHOLE else sum(share.memory for share in mine)

    def view(self, name: str, core: int, memory: int, *, but: Key | None = None) -> View:
        """Return the node's view with these capacities, without the shares of the pod `but`."""
        with self._lock:
            there = self._on_node.get(name, {})
            if but in there:
                beside = self.beside_annotations(name, without=(self._pods[but].uid,))
                return View(name, core, memory, _in_order(there, but=but), beside)
            kept = self._views.get(name)
            if kept is None or kept[:2] != (core, memory):
                view = View(name, core, memory, _in_order(there), self.beside_annotations(name))
                kept = self._views[name] = (core, memory, view)
            return kept[2]

    def views(self, sizes: Iterable[tuple[str, int, int]], *, but: Key) -> list[View]:
        """Return the views of nodes given by name, core and memory, at one moment."""
        found = []
        with self._lock:
            there = self._pods.get(but)
            own, known = there.counts_on if there is not None else "", self._views.get
            for name, core, memory in sizes:
                kept = known(name)
                if kept is None or kept[0] != core or kept[1] != memory or name == own:
                    found.append(self.view(name, core, memory, but=but))
                else:
                    found.append(kept[2])
        return found

    def capacity(self, name: str) -> tuple[int, int] | None:
        """Return core and memory units of a node; None if it is unknown."""
        return self._nodes.get(name)

    def sizes(self, names: Iterable[str]) -> list[tuple[str, int, int]]:
        """Return name, core and memory of each node; unknown nodes have none."""
        with self._lock:
            return [(name, *self._nodes.get(name, (0, 0))) for name in names]

    def nodes(self) -> list[str]:
        """Return the names of the nodes with GPUs."""
        with self._lock:
            return sorted(name for name, (core, _) in self._nodes.items() if core > 0)

    def pod(self, key: Key) -> PodState | None:
        """Return the pod of this name, or None."""
        return self._pods.get(key)

    def pods_in(self, namespace: str) -> list[PodState]:
        """Return the live pods of the namespace."""
        with self._lock:
            return [pod for key, pod in sorted(self._pods.items()) if key[0] == namespace]

    def pods_on(self, node: str) -> list[PodState]:
        """Return the pods that hold GPUs of the node."""
        with self._lock:
            return [self._pods[key] for key in sorted(self._on_node.get(node, {}))]

    def pods_with_gpus(self) -> list[PodState]:
        """Return all pods that hold GPUs of some node, bound or only chosen."""
        with self._lock:
            return [self._pods[key] for there in self._on_node.values() for key in there]

    def _see_nodes(self, news: Observation) -> None:
        if news.whole:
            self._nodes.clear()
        for node in news.objects:
            assert isinstance(node, Node)
            try:
                self._nodes[node.metadata.name] = capacity(node)
            except NotAQuantity as error:
                logger.warning("node %s: %s", node.metadata.name, error)
            if news.gone:
                self._nodes.pop(node.metadata.name, None)

    def _see_pods(self, news: Observation) -> None:
        if news.whole:
            self._pods.clear()
            self._by_uid.clear()
            self._on_node.clear()
            self._views.clear()
            self._taken = {key: mine for key, mine in self._taken.items() if mine.version > news.version}
            for mine in self._taken.values():
                self._see_pod(mine, gone=False)
        for pod in news.objects:
            try:
                one = parse_pod(pod)
                if (taken := self._taken.get(one.key)) is not None and taken.version <= one.version:
                    del self._taken[one.key]
                self._see_pod(one, gone=news.gone)
            except NotAQuantity as error:
                logger.warning("pod %s/%s: %s", pod.metadata.namespace, pod.metadata.name, error)

    def _see_pod(self, pod: PodState, *, gone: bool) -> None:
        old = self._pods.get(pod.key)
        if old is not None and old.version > pod.version:
            return  # the version written here is newer than the watch's
        if pod.key in self._choices and not (gone or pod.over):
            node, chosen, _ = self._choices[pod.key]
            self._choices[pod.key] = node, chosen, pod
            pod = chosen_for(pod, node, chosen)
        if old is not None and old.counts_on:
            self._on_node[old.counts_on].pop(pod.key, None)
            self._views.pop(old.counts_on, None)
        if gone or pod.over:
            self._pods.pop(pod.key, None)
            self._by_uid.pop(pod.uid, None)
            return
        if old is not None and old.uid != pod.uid:
            self._by_uid.pop(old.uid, None)
        self._pods[pod.key] = self._by_uid[pod.uid] = pod
        if pod.counts_on and pod.shares:
            self._on_node[pod.counts_on][pod.key] = pod.shares
            self._views.pop(pod.counts_on, None)


def _in_order(there: dict[Key, tuple[HeldShare, ...]], *, but: Key | None = None) -> Iterable[tuple[HeldShare, ...]]:
    """Yield shares in the order of keys, so that contradicting annotations always resolve the same way."""
    return (there[key] for key in sorted(there) if key != but)
