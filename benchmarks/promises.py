"""`make bench-promises`: how long a pod waits for the promise of its GPUs, while the pods before it are recorded.

Our own two processes and PostgreSQL (durable), without a Kubernetes: this one asks the extender's filter about one pod
after the other, as kube-scheduler does, with an API server that answers at once; each chosen pod is bound at once and
goes to the workers of `manage.py clusters` in a process of their own. All pods are one tenant's.
"""

import argparse
import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.own_services import own_services
from benchmarks.processor import milliseconds_each, seconds_by_program
from benchmarks.report import Row, print_report, quantile

GPUS, CORE, UNITS = 8, 10, 8
MOST_SECONDS = 120.0
PYTHON = Path(sys.executable).name
Json = dict[str, Any]


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(prog="make bench-promises", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pods", type=int, default=300, help="pods of a run (300)")
    parser.add_argument("--nodes", type=int, default=100, help="nodes of 8 GPUs (100)")
    parser.add_argument("--runs", type=int, default=3, help="runs (3)")
    parser.add_argument("--pause-ms", type=float, default=0.0, help="what kube-scheduler does between two pods (0)")
    arguments = parser.parse_args()
    with own_services():
        import django  # noqa: PLC0415 - the settings read the environment that was just made

        django.setup()
        from django.core.management import call_command  # noqa: PLC0415

        call_command("migrate", verbosity=0)
        rows = _measure(arguments)
    print_report("promises", rows)


def _measure(arguments: argparse.Namespace) -> list[Row]:
    from django.db import connection  # noqa: PLC0415

    cluster = _stage(arguments.nodes)
    world = _world(cluster, arguments)
    rows: list[Row] = []
    for run in range(arguments.runs):
        names = [_name(run, number) for number in range(arguments.pods)]
        connection.close()
        context = multiprocessing.get_context("fork")
        bound: Any = context.Queue()
        recorded = context.Event()
        recorder = context.Process(target=_record, args=(cluster, bound, recorded, len(names)))
        recorder.start()
        before, own, begun = seconds_by_program(), time.process_time(), time.monotonic()
        waits = _ask(*world, names, arguments, bound)
        asked = time.monotonic() - begun
        if not recorded.wait(MOST_SECONDS):
            raise SystemExit("The pods do not come into the ledger.")
        late = time.monotonic() - begun - asked
        own, spent = time.process_time() - own, milliseconds_each(before, seconds_by_program(), len(names))
        recorder.terminate()
        recorder.join()
        rows.append(
            {"run": run + 1, "pods/s": len(names) / asked, "wait p50 ms": quantile(waits, 0.5),
             "p90": quantile(waits, 0.9), "p99": quantile(waits, 0.99), "last in ledger after s": late,
             "CPU ms a pod: filter": own * 1000 / len(names), "recording": spent[PYTHON],
             "PostgreSQL": spent["postgres"]}
        )  # fmt: skip
    return rows


def _name(run: int, number: int) -> str:
    return f"run{run}-{number}"


def _world(cluster: Any, arguments: argparse.Namespace) -> tuple[Any, Any]:
    """Return a cluster in memory with the pods of all runs, and its extender."""
    from apps.clusters.extender.promises import Promises  # noqa: PLC0415
    from tests.clusters import paper  # noqa: PLC0415

    nodes = [paper.node(f"node-{number}", GPUS * 100, GPUS * 96) for number in range(arguments.nodes)]
    names = [_name(run, number) for run in range(arguments.runs) for number in range(arguments.pods)]
    here = paper.Paper(nodes, [paper.pod(name, paper.container(CORE, UNITS)) for name in names])
    promises = Promises(cluster, here.mirror)
    promises.refresh()
    return here, here.extended(promises=promises)


def _ask(here: Any, extended: Any, names: list[str], arguments: argparse.Namespace, bound: Any) -> list[float]:
    """Ask about each pod, bind it, and return the milliseconds that each filter took."""
    from apps.clusters.extender import predicates  # noqa: PLC0415
    from tests.clusters import paper  # noqa: PLC0415

    called = [node["metadata"]["name"] for node in here.nodes]
    waits = []
    for name in names:
        item = here.pods[name]
        body = paper.request(item, names=called)
        begun = time.perf_counter()
        answer = json.loads(predicates.answer(extended, body))
        waits.append((time.perf_counter() - begun) * 1000)
        assert answer["NodeNames"], answer
        item["spec"]["nodeName"] = answer["NodeNames"][0]
        here.see(name)
        bound.put(item)
        time.sleep(arguments.pause_ms / 1000)
    return waits


def _record(cluster: Any, bound: Any, recorded: Any, count: int) -> None:
    """Record the pods that come, as `manage.py clusters` does; say when all have a claim."""
    from apps.clusters.models import PodClaim  # noqa: PLC0415
    from apps.clusters.pod_queue import PodQueue  # noqa: PLC0415
    from apps.clusters.recording import Recorder  # noqa: PLC0415

    queue = PodQueue()
    recorder = Recorder(cluster, queue, labels=lambda _: {})
    recorder.start()
    before = PodClaim.objects.filter(claim__isnull=False).count()
    for _ in range(count):
        pod = bound.get()
        queue.put(pod["metadata"]["uid"], pod)
    while PodClaim.objects.filter(claim__isnull=False).count() < before + count:
        recorder.raise_failure()
        time.sleep(0.02)
    recorded.set()
    time.sleep(MOST_SECONDS)


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
    tenant = tenants.create_tenant(principal=SYSTEM, slug="team", name="Team")
    bindings.bind(principal=SYSTEM, cluster=cluster, tenant=tenant, namespace="ml")
    for resource in ("core_percent", "memory_mib"):
        quotas.create_quota(principal=SYSTEM, tenant=tenant, pool=pool, resource=resource, hard=10**9)
    return cluster


if __name__ == "__main__":
    main()
