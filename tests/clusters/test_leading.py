"""A thread of a cluster that hangs is seen by the heartbeat of its process; one that is slow is not."""

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.clusters import watches as of_threads
from apps.clusters.management.leading import Leading
from apps.clusters.models import Cluster
from apps.clusters.pod_queue import PodQueue
from apps.clusters.recording import Recorder
from apps.clusters.services import clusters
from apps.clusters.watches import Watch, Watches
from apps.clusters.watching import Watched
from apps.quotas.principals import SYSTEM
from tests.cast import Cast
from tests.clusters.kubeconfigs import kubeconfig
from tests.heartbeats import age, is_alive
from tests.processes import eventually

HANGING_SECONDS = 0.3


class Held(Watch):
    """A watch whose only step lasts until it is let go; with `moving` it says that it moves."""

    def __init__(self, cluster: Cluster, *, moving: bool) -> None:
        super().__init__(cluster)
        self.moving, self.let_go = moving, threading.Event()

    def step(self) -> None:
        while not self.let_go.wait(0.05):
            if self.moving:
                self.move()


@pytest.fixture
def cluster(cast: Cast) -> Cluster:
    return clusters.connect(principal=SYSTEM, name="kube", pool=cast.pool, kubeconfig=kubeconfig())


@pytest.fixture
def file(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    settings.HEARTBEAT_PATH = str(tmp_path / "heartbeat")
    monkeypatch.setattr(of_threads, "HANGING_SECONDS", HANGING_SECONDS)
    return tmp_path / "heartbeat"


def start(cluster: Cluster, *, moving: bool) -> Iterator[tuple[Watches, Held]]:
    watches, watch = Watches(Watched), Held(cluster, moving=moving)
    watches.by_name[cluster.name] = watch
    # Without `connection.close()` at its end: this thread's transaction is the test's.
    watch._thread = threading.Thread(target=watch.step, daemon=True)
    watch.start()
    try:
        yield watches, watch
    finally:
        watch.let_go.set()
        watch.join(10)


@pytest.fixture
def hanging(cluster: Cluster) -> Iterator[tuple[Watches, Held]]:
    yield from start(cluster, moving=False)


@pytest.fixture
def slow(cluster: Cluster) -> Iterator[tuple[Watches, Held]]:
    yield from start(cluster, moving=True)


def beats(command: Leading, watches: Watches, file: Path) -> bool:
    if file.exists():
        age(file, 3600)
    command._beat([watches])
    return is_alive(file)


def test_a_hanging_thread_stops_the_heartbeat_and_is_named_once(
    hanging: tuple[Watches, Held], file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watches, watch = hanging
    command = Leading()
    assert beats(command, watches, file)
    assert eventually(lambda: watch.still_seconds > HANGING_SECONDS, seconds=10)
    with caplog.at_level(logging.ERROR):
        assert not beats(command, watches, file)
        assert not beats(command, watches, file)
    assert [record.getMessage() for record in caplog.records if "kube" in record.getMessage()] == [
        "cluster kube: its thread has not moved for 300 s"
    ]
    watch.let_go.set()
    watch.join(10)
    # An ended thread is started again: nothing hangs.
    assert beats(command, watches, file)


def test_a_step_that_is_long_but_moves_is_no_reason_to_end(slow: tuple[Watches, Held], file: Path) -> None:
    watches, _ = slow
    end = time.monotonic() + 5 * HANGING_SECONDS
    while time.monotonic() < end:
        # On a busy machine a thread may rest for longer than this test's short time.
        assert eventually(lambda: beats(Leading(), watches, file), seconds=10)
        time.sleep(0.05)


def test_a_worker_that_hangs_counts_as_its_clusters_thread(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go, queue = threading.Event(), PodQueue()

    def hang(recorder: Recorder, work: Any) -> set[str]:
        let_go.wait()
        return set()

    monkeypatch.setattr(Recorder, "_record", hang)
    recorder = Recorder(cluster, queue, labels=lambda _: {})
    assert recorder.busy_seconds == 0
    queue.put("u1", {"metadata": {"uid": "u1", "name": "p", "namespace": "ml"}, "spec": {}, "status": {}})
    worker = threading.Thread(target=recorder.work_off)
    worker.start()
    try:
        watch = Watched(cluster)
        watch._recorder = recorder
        assert eventually(lambda: watch.still_seconds > 1 and recorder.busy_seconds > 1, seconds=20)
        watch.move()
        assert watch.still_seconds > 1
    finally:
        let_go.set()
        worker.join()
    assert recorder.busy_seconds == 0


def test_workers_that_are_idle_end_at_once_when_asked(cluster: Cluster) -> None:
    """Without a wake they would end after the second for which they wait for work; here they would wait for ever."""
    queue = PodQueue()
    waiting = threading.Thread(target=lambda: queue.take(1, seconds=threading.TIMEOUT_MAX), daemon=True)
    waiting.start()
    recorder = Recorder(cluster, queue, labels=lambda _: {})
    assert not eventually(lambda: not waiting.is_alive(), seconds=0.3)

    def ends() -> bool:
        recorder.stop()
        return not waiting.is_alive()

    assert eventually(ends, seconds=10)
