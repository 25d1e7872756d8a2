"""`make bench-books`: how fast bound pods come into the ledger, one event at a time and by queue and workers.

A burst: each pod has five events, as a real one has until it runs (created, chosen, bound, container created, ready),
in the order of all pods. Both ways have the same events, database (durable) and machine; nodes have 8 GPUs. The first
way is that of version 0.1: each event in its order, and each pod in a transaction of its own.
"""

import argparse
import threading
import time
from collections.abc import Callable
from typing import Any

from agent import wire
from benchmarks.own_services import own_services
from benchmarks.report import Row, print_report, quantile

GPUS, NAMESPACES = 8, 4
MOST_SECONDS = 120
Json = dict[str, Any]
# Events: whether the pod is gone, and its state.
Events = list[tuple[str, Json]]


def main() -> None:
    """Record, print."""
    parser = argparse.ArgumentParser(prog="make bench-books", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pods", type=int, default=200, help="pods of a burst (200)")
    parser.add_argument("--nodes", type=int, default=20, help="nodes of 8 GPUs (20)")
    parser.add_argument("--runs", type=int, default=3, help="bursts of each way (3)")
    arguments = parser.parse_args()
    with own_services():
        import django  # noqa: PLC0415 - the settings read the environment that was just made

        django.setup()
        from django.core.management import call_command  # noqa: PLC0415

        call_command("migrate", verbosity=0)
        _measure(arguments.pods, arguments.nodes, arguments.runs)


def _measure(count: int, nodes: int, runs: int) -> None:
    cluster = _stage(nodes)
    ways: dict[str, Callable[[Any, Events], None]] = {"one event at a time": _one_by_one, "queue and workers": _queued}
    rows: list[Row] = []
    for way, does in ways.items():
        latest: list[float] = []
        spent: list[float] = []
        for run in range(runs):
            events = _events(f"{way[:3]}{run}", count, nodes)
            begun, seen = time.monotonic(), _Seen(cluster)
            does(cluster, events)
            seconds, ages = seen.end(begun, count)
            spent.append(seconds)
            latest += ages
            _end_all(cluster)
        middle = sorted(spent)[len(spent) // 2]
        rows.append(
            {"way": way, "pods": count, "seconds": middle, "pods/s": count / middle,
             "row after s p50": quantile(latest, 0.5), "row after s max": max(latest)}
        )  # fmt: skip
    rows[0]["ratio"], rows[1]["ratio"] = 1.0, rows[0]["seconds"] / rows[1]["seconds"]
    print_report("books", rows)


class _Seen:
    """The moments at which the cluster's pods got their claims, polled by a thread with a session of its own."""

    def __init__(self, cluster: Any) -> None:
        self._cluster, self._over = cluster, threading.Event()
        self._at: dict[str, float] = {}
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def end(self, begun: float, count: int) -> tuple[float, list[float]]:
        """Wait for all; return the seconds until the last, and those of each."""
        from apps.clusters.models import PodClaim  # noqa: PLC0415

        while len(self._at) < count:
            if time.monotonic() - begun > MOST_SECONDS:
                raise SystemExit(
                    f"{count - len(self._at)} pods have no claim: {PodClaim.objects.filter(claim=None)[:3].values()}"
                )
            time.sleep(0.005)
        self._over.set()
        self._thread.join()
        ages = [at - begun for at in self._at.values()]
        return max(ages), ages

    def _poll(self) -> None:
        from django.db import connection  # noqa: PLC0415

        from apps.clusters.models import PodClaim  # noqa: PLC0415

        rows = PodClaim.objects.live().filter(cluster=self._cluster, claim__isnull=False).values_list("pod_uid")
        while not self._over.wait(0.02):
            for (uid,) in rows.all():
                self._at.setdefault(uid, time.monotonic())
        connection.close()


def _stage(nodes: int) -> Any:
    from apps.clusters.services import bindings, clusters  # noqa: PLC0415
    from apps.nodes.models import Node  # noqa: PLC0415
    from apps.quotas.principals import SYSTEM  # noqa: PLC0415
    from apps.quotas.services import quotas, tenants  # noqa: PLC0415
    from tests.cast import Machine  # noqa: PLC0415
    from tests.clusters.kubeconfigs import kubeconfig  # noqa: PLC0415

    pool = tenants.create_pool(principal=SYSTEM, name="default")
    for number in range(nodes):
        Machine(f"node-{number}", pool, gpus=GPUS)
    Node.objects.update(last_seen_at="2100-01-01T00:00:00Z")
    cluster = clusters.connect(principal=SYSTEM, name="kube", pool=pool, kubeconfig=kubeconfig())
    for number in range(NAMESPACES):
        tenant = tenants.create_tenant(principal=SYSTEM, slug=f"team-{number}", name=f"Team {number}")
        bindings.bind(principal=SYSTEM, cluster=cluster, tenant=tenant, namespace=f"ns-{number}")
        for resource in ("core_percent", "memory_mib"):
            quotas.create_quota(principal=SYSTEM, tenant=tenant, pool=pool, resource=resource, hard=10**9)
    return cluster


def _events(word: str, count: int, nodes: int) -> Events:
    made = [_steps(f"{word}-{number}".replace(" ", "-"), number, nodes) for number in range(count)]
    return [pod for step in zip(*made, strict=True) for pod in step]


def _steps(name: str, number: int, nodes: int) -> Events:
    node, gpu = f"node-{number % nodes}", number // nodes % GPUS
    chosen = {"tencent.com/predicate-gpu-idx-0": str(gpu), "tencent.com/predicate-node": node}
    limits = {"tencent.com/vcuda-core": "10", "tencent.com/vcuda-memory": "9"}

    def pod(annotations: Json, on: str, phase: str, **status: Any) -> tuple[str, Json]:
        meta = {"name": name, "namespace": f"ns-{number % NAMESPACES}", "uid": f"u-{name}", "annotations": annotations}
        spec = {"containers": [{"name": "main", "resources": {"limits": limits}}], **({"nodeName": on} if on else {})}
        return f"u-{name}", {"metadata": meta, "spec": spec, "status": {"phase": phase, **status}}

    return [
        pod({}, "", "Pending"),
        pod(chosen, "", "Pending"),
        pod(chosen, node, "Pending"),
        pod(chosen, node, "Pending", conditions=[{"type": "Initialized", "status": "True"}]),
        pod(chosen, node, "Running", conditions=[{"type": "Ready", "status": "True"}]),
    ]


def _one_by_one(cluster: Any, events: Events) -> None:
    from apps.clusters.importing import following  # noqa: PLC0415
    from apps.clusters.services import resizing  # noqa: PLC0415

    for uid, pod in events:
        following.follow(cluster=cluster, pod=pod, labels={})
        resizing.follow(cluster=cluster, pod_uid=uid, annotations=pod["metadata"]["annotations"])


def _queued(cluster: Any, events: Events) -> None:
    from apps.clusters.pod_queue import PodQueue  # noqa: PLC0415
    from apps.clusters.recording import Recorder  # noqa: PLC0415

    queue = PodQueue()
    recorder = Recorder(cluster, queue, labels=lambda _: {})
    recorder.start()
    for uid, pod in events:
        queue.put(uid, pod)
    while not recorder.work_off(seconds=1.0):
        recorder.raise_failure()
    recorder.stop()
    recorder.join(5.0)


def _end_all(cluster: Any) -> None:
    from apps.clusters.importing import following  # noqa: PLC0415
    from apps.clusters.models import PodClaim  # noqa: PLC0415
    from apps.nodes.models import Node  # noqa: PLC0415
    from apps.scheduling.services.claims.desired import desired_state  # noqa: PLC0415
    from apps.scheduling.services.claims.observation import take_observed  # noqa: PLC0415
    from tests.cast import done  # noqa: PLC0415

    for uid in set(PodClaim.objects.live().values_list("pod_uid", flat=True)):
        following.end(cluster=cluster, pod_uid=uid)
    for node in Node.objects.all():
        answers = [done(wanted) for wanted in desired_state(node).assignments]
        take_observed(node=node, frame=wire.Observed(frame=node.frame, assignments=answers))


if __name__ == "__main__":
    main()
