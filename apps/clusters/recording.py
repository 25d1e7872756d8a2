"""Workers that record a cluster's pods in the ledger, batch by batch, each with a database session of its own."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from django.db import InterfaceError, OperationalError, connection

from apps.clusters.formats import pods
from apps.clusters.importing import following
from apps.clusters.models import Cluster
from apps.clusters.pod_queue import Pod, PodQueue, Work
from apps.clusters.services import resizing
from gpucloud.errors import GpucloudError

logger = logging.getLogger(__name__)

# One computes while the others' statements run.
WORKERS = 2
# A transaction locks its GPUs: longer ones would hold up schedulers and agents.
BATCH = 50
IDLE_SECONDS = 1.0
# Pods of a burst are gathered so long: each waits less than for those before it, one by one. The first does not wait.
GATHER_SECONDS = 0.3
# Labels by the name of a namespace.
Labels = Callable[[str], Mapping[str, str]]


class Recorder:
    """The workers of one cluster. Until they are started, the caller's thread does their work (`work_off`)."""

    def __init__(self, cluster: Cluster, queue: PodQueue, *, labels: Labels) -> None:
        """Take pods from `queue`; `labels` returns those of a namespace."""
        self._cluster, self._queue, self._labels = cluster, queue, labels
        self._stopped = threading.Event()
        self._failure: Exception | None = None
        # When each busy worker began its present batch, by thread.
        self._busy_since: dict[int, float] = {}
        self._threads = [
            threading.Thread(target=self._run, name=f"recorder-{cluster.name}", daemon=True) for _ in range(WORKERS)
        ]

    def start(self) -> None:
        """Start the workers."""
        for thread in self._threads:
            thread.start()

    @property
    def busy_seconds(self) -> float:
        """Time since a worker began its present batch, the longest; 0 if all are idle."""
        return max((time.monotonic() - since for since in list(self._busy_since.values())), default=0.0)

    def stop(self) -> None:
        """End the workers after their present batches."""
        self._stopped.set()
        self._queue.wake()

    def join(self, seconds: float) -> None:
        """Wait at most so many seconds for the end of the workers."""
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout=seconds)

    def raise_failure(self) -> None:
        """Raise the failure that ended a worker, if there is one."""
        if self._failure is not None:
            raise self._failure

    def work_off(self, *, seconds: float = 0.0) -> bool:
        """Wait so long until all is recorded, return True then; without workers, record it in this thread."""
        if not any(thread.is_alive() for thread in self._threads):
            while not self._stopped.is_set() and (work := self._queue.take(BATCH)):
                self._work(work)
        return self._queue.wait_until_idle(seconds)

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                if work := self._queue.take(BATCH, seconds=IDLE_SECONDS, apart=GATHER_SECONDS):
                    self._work(work)
                else:
                    # Other threads may need the session: with a pool there is a fixed number of them.
                    connection.close()
        except Exception as error:  # noqa: BLE001 - the cluster's thread raises it, and everything starts again
            self._failure = error
        finally:
            connection.close()

    def _work(self, work: Work) -> None:
        failed, worker = set(work), threading.get_ident()
        self._busy_since[worker] = time.monotonic()
        try:
            failed = self._record(work)
        finally:
            del self._busy_since[worker]
            self._queue.done(work, failed=failed)

    def _record(self, work: Work) -> set[str]:
        """Record the pods; return the uids of those that could not be."""
        there = {uid: pod for uid, pod in work.items() if pod is not None}
        for uid in work.keys() - there.keys():
            following.end(cluster=self._cluster, pod_uid=uid)
        found = [(pod, self._labels(_namespace_of(pod))) for pod in there.values()]
        alone = following.follow_many(cluster=self._cluster, found=found)
        failed = {_uid_of(pod) for pod in alone if not self._surely(pod, self._follow)}
        words = {uid: pods.annotations(pod) for uid, pod in there.items() if pods.node_of(pod) and uid not in failed}
        for uid in resizing.changed(cluster=self._cluster, annotations=words):
            if not self._surely(there[uid], self._resize):
                failed.add(uid)
        return failed

    def _follow(self, pod: Pod) -> None:
        following.follow(cluster=self._cluster, pod=pod, labels=self._labels(_namespace_of(pod)))

    def _resize(self, pod: Pod) -> None:
        resizing.follow(cluster=self._cluster, pod_uid=_uid_of(pod), annotations=pods.annotations(pod))

    def _surely(self, pod: Pod, does: Callable[[Pod], None]) -> bool:
        """Call `does` with the pod; log what it raises and return False, but raise if the database is away."""
        about = f"pod {pods.name_of(pod)} of {self._cluster.name}"
        try:
            does(pod)
        except GpucloudError as error:
            logger.info("%s: %s", about, error.detail)
            return False
        except (InterfaceError, OperationalError):
            raise
        except Exception:
            # Tenants write pods: a malformed one must not keep others out of the ledger.
            logger.exception("%s skipped", about)
            return False
        return True


def _uid_of(pod: Pod) -> str:
    meta: Mapping[str, Any] = pod["metadata"]
    return str(meta["uid"])


def _namespace_of(pod: Pod) -> str:
    return str(pod["metadata"]["namespace"])
