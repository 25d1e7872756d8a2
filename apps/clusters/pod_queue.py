"""Queue of pods whose records are to be brought up to date: the newest state of each pod, for several workers.

As in client-go's work queues, a pod is in the queue once, whatever the number of its events, and one worker has it at a
time. Events that change nothing that is recorded are skipped: most events of a pod are reports of its status.
"""

import math
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from apps.clusters.formats import pods
from apps.clusters.services import resizing

Pod = Mapping[str, Any]
# The state of each pod by its uid; None: it is gone.
Work = dict[str, Pod | None]


def recorded_facts(pod: Pod) -> tuple[Any, ...]:
    """Return all of a live pod that its records follow from; a pod's containers cannot change their GPUs."""
    annotations = {key: word for key, word in pods.annotations(pod).items() if key != resizing.STATUS}
    return pods.node_of(pod), annotations, dict(pods.labels(pod)), pods.is_live(pod)


class PodQueue:
    """A queue, usable from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: Work = {}
        self._in_work: set[str] = set()
        # What was last queued for each pod.
        self._known: dict[str, tuple[Any, ...]] = {}
        self._taken_at = -math.inf

    def put(self, uid: str, pod: Pod) -> None:
        """Queue the pod's new state, unless it was queued with all that is recorded of it."""
        facts = recorded_facts(pod)
        with self._changed:
            if self._known.get(uid) != facts:
                self._known[uid] = facts
                self._waiting[uid] = pod
                self._changed.notify()

    def put_end(self, uid: str) -> None:
        """Queue the end of a pod."""
        with self._changed:
            self._known.pop(uid, None)
            self._waiting[uid] = None
            self._changed.notify()

    def put_again(self, uid: str, pod: Pod) -> None:
        """Queue the pod whatever was queued before, unless it waits already."""
        with self._changed:
            self._known[uid] = recorded_facts(pod)
            self._waiting.setdefault(uid, pod)
            self._changed.notify()

    def keep_only(self, uids: Iterable[str]) -> None:
        """Forget all pods but these."""
        with self._changed:
            kept = set(uids)
            self._known = {uid: facts for uid, facts in self._known.items() if uid in kept}
            self._waiting = {uid: pod for uid, pod in self._waiting.items() if uid in kept}

    def take(self, most: int, *, seconds: float = 0.0, apart: float = 0.0) -> Work:
        """Return pods that nobody works on, in their order; wait so long for the first. Call `done` with them.

        Fewer than `most` are returned only `apart` seconds after pods were returned before: a transaction for many
        costs hardly more than one for a single pod, and locks what those would lock one after the other.
        """
        with self._changed:
            if not self._free() and seconds:
                self._changed.wait(seconds)
            pause = self._taken_at + apart - time.monotonic()
            if pause > 0:
                self._changed.wait_for(lambda: len(self._free()) >= most, pause)
            taken: Work = {uid: self._waiting.pop(uid) for uid in self._free()[:most]}
            if taken:
                self._taken_at = time.monotonic()
            self._in_work |= taken.keys()
            return taken

    def done(self, work: Work, *, failed: Iterable[str] = ()) -> None:
        """End the work on these pods. The next event of a pod that failed is not skipped, whatever it changes."""
        with self._changed:
            self._in_work -= work.keys()
            for uid in failed:
                self._known.pop(uid, None)
            self._changed.notify_all()

    def wake(self) -> None:
        """Let those that wait for work look whether they are to stop."""
        with self._changed:
            self._changed.notify_all()

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait at most so long until nothing waits and nothing is worked on; return True then."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._in_work, seconds)

    def _free(self) -> list[str]:
        return [uid for uid in self._waiting if uid not in self._in_work]
