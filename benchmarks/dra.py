"""`make bench-dra`: pods bound per second by kube-scheduler alone, by the extender, and by DRA.

A real etcd, kube-apiserver and kube-scheduler on this machine, with as many nodes as asked, each with 8 GPUs; no
kubelet. All pods ask for the same share of one GPU and are created before kube-scheduler starts, so that its speed is
measured, not that of the creation. kube-scheduler may send as many requests as it wants. Alone, it counts a node's
`tencent.com/vcuda-core` and knows no GPUs; the extender chooses GPUs by gpu-admission's rules; with DRA kube-scheduler
does. `manage.py clusters` keeps the ledger and the ResourceSlices meanwhile, except where kube-scheduler is alone.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.processor import milliseconds_each, seconds_by_program
from benchmarks.report import Row, print_report, quantile
from deploy import embedded
from deploy.demo.programs import Commands
from deploy.demo.state import State
from gpucloud.errors import GpucloudError

ROOT = Path(__file__).parent.parent
GPUS, CORE, MEMORY_MIB = 8, 10, 2048
MOST_SECONDS, HANDS = 300.0, 8
NAMESPACE = "bench"
ALONE, EXTENDER, DRA = "kube-scheduler alone", "extender", "DRA"
# What each used for a pod, from kube-scheduler's start until the last one is bound, in milliseconds of processor.
PROGRAMS = ("kube-scheduler", "kube-apiserver", "etcd", "extender", "clusters", "postgres")
Json = dict[str, Any]


def main() -> None:
    """Record, print."""
    parser = argparse.ArgumentParser(prog="make bench-dra", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000, help="nodes of 8 GPUs (1000)")
    parser.add_argument("--pods", type=int, default=300, help="pods (300)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each way (3)")
    parser.add_argument("--way", action="append", choices=(ALONE, EXTENDER, DRA), help="only this one; repeatable")
    arguments = parser.parse_args()
    from tests.clusters import control_plane  # noqa: PLC0415 - imports Django's settings

    if why := control_plane.missing():
        raise SystemExit(f"make bench-dra: {why}.")
    rows: list[Row] = []
    for way in arguments.way or (ALONE, EXTENDER, DRA):
        runs = [_run(way, arguments.nodes, arguments.pods) for _ in range(arguments.runs)]
        rates = sorted(arguments.pods / max(moments) for moments, _ in runs)
        ages = [at for moments, _ in runs for at in moments]
        spent = {name: sum(used.get(name, 0.0) for _, used in runs) / len(runs) for name in PROGRAMS}
        rows.append(
            {"way": way, "pods": arguments.pods, "pods/s": rates[len(rates) // 2], "least": rates[0], "most": rates[-1],
             "bound after s p50": quantile(ages, 0.5), "p99": quantile(ages, 0.99),
             **{f"{name} ms": value for name, value in spent.items()}}
        )  # fmt: skip
    for row in rows:
        row["ratio"] = row["pods/s"] / rows[0]["pods/s"]
    print_report("dra", rows)


def _run(way: str, nodes: int, pods: int) -> tuple[list[float], dict[str, float]]:
    """Return the seconds from the scheduler's start at which each pod was bound, and each program's work for one."""
    with tempfile.TemporaryDirectory(prefix="gpucloud-bench-") as directory, ExitStack() as stack:
        stage = stack.enter_context(_stage(Path(directory), nodes, with_ledger=way != ALONE, dra=way == DRA))
        stage.create_pods(pods, dra=way == DRA)
        if way == DRA:
            stage.wait(lambda: stage.count("/apis/resource.k8s.io/v1/resourceslices") == nodes, "slices")
        config = stage.configuration(extender=way == EXTENDER)
        bound = _Bound(stage, pods)
        before, begun = seconds_by_program(), time.monotonic()
        stage.plane.start_scheduler(config)
        moments = [at - begun for at in bound.wait()]
        return moments, milliseconds_each(before, seconds_by_program(), pods)


class _Bound:
    """The moments at which pods were bound, by a watch."""

    def __init__(self, stage: "_Stage", count: int) -> None:
        self._client, self._count = stage.client(), count
        self._at: dict[str, float] = {}
        _, version = self._client.list(f"/api/v1/namespaces/{NAMESPACE}/pods")
        threading.Thread(target=self._follow, args=(version,), daemon=True).start()

    def wait(self) -> list[float]:
        """Wait for all."""
        until = time.monotonic() + MOST_SECONDS
        while len(self._at) < self._count:
            if time.monotonic() > until:
                raise SystemExit(f"{self._count - len(self._at)} of {self._count} pods were not bound.")
            time.sleep(0.05)
        return list(self._at.values())

    def _follow(self, version: str) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        with suppress(GpucloudError):  # the API server ends
            for event in self._client.watch(path, version, seconds=int(MOST_SECONDS)):
                pod = json.loads(bytes(event.object))
                if event.type != "BOOKMARK" and pod["spec"].get("nodeName"):
                    self._at.setdefault(pod["metadata"]["name"], time.monotonic())


class _Stage:
    """A control plane of Kubernetes, and ours beside it."""

    def __init__(self, plane: Any, settings: dict[str, str] | None, extender_port: int) -> None:
        self.plane, self._settings, self._port = plane, settings, extender_port

    def client(self) -> Any:
        return self.plane.client()

    def count(self, path: str) -> int:
        return len(self.client().list(path)[0])

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + MOST_SECONDS
        while not holds():
            if time.monotonic() > until:
                raise SystemExit(f"{what} do not come.")
            time.sleep(0.2)

    def create_nodes(self, count: int) -> None:
        from tests.clusters.cluster_objects import add_node  # noqa: PLC0415

        self._share(lambda client, number: add_node(client, f"node-{number}", gpus=GPUS, units=96), count)

    def create_pods(self, count: int, *, dra: bool) -> None:
        from tests.clusters.dra import things  # noqa: PLC0415

        self._share(lambda client, number: _create_pod(client, number, things if dra else None), count)

    def configuration(self, *, extender: bool) -> Json:
        from apps.clusters.services import scheduler_configuration  # noqa: PLC0415

        fast = {"clientConnection": {"qps": 5000, "burst": 5000}}
        kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
        if not extender:
            return kind | fast
        entry = scheduler_configuration.extender(f"http://127.0.0.1:{self._port}/clusters/kube", by_name=True)
        return scheduler_configuration.configuration(entry) | fast

    def _share(self, does: Callable[[Any, int], None], count: int) -> None:
        def work(first: int) -> None:
            client = self.client()
            for number in range(first, count, HANDS):
                does(client, number)

        hands = [threading.Thread(target=work, args=(first,)) for first in range(HANDS)]
        for hand in hands:
            hand.start()
        for hand in hands:
            hand.join()


def _create_pod(client: Any, number: int, things: Any) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    if things is not None:
        claim = things.claim(f"c{number}", NAMESPACE, core=CORE, memory=f"{MEMORY_MIB}Mi")
        client.post(f"{things.API}/namespaces/{NAMESPACE}/resourceclaims", claim)
        client.post(path, things.pod(f"p{number}", NAMESPACE, claim=f"c{number}"))
        return
    limits = {"tencent.com/vcuda-core": str(CORE), "tencent.com/vcuda-memory": str(MEMORY_MIB // 256)}
    container = {"name": "main", "image": "cuda", "resources": {"limits": limits}}
    client.post(path, {"metadata": {"name": f"p{number}"}, "spec": {"containers": [container]}})


@contextmanager
def _stage(directory: Path, nodes: int, *, with_ledger: bool, dra: bool) -> Iterator[_Stage]:
    from tests.clusters.control_plane import ControlPlane  # noqa: PLC0415
    from tests.ports import free_port  # noqa: PLC0415

    port = free_port()
    with ExitStack() as stack:
        plane = stack.enter_context(ControlPlane(directory / "kube"))
        plane.client().post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        stage = _Stage(plane, None, port)
        stage.create_nodes(nodes)
        for name in ("DATABASE_URL", "REDIS_URL"):
            os.environ.pop(name, None)
        state = State.at(directory / "state")
        running = stack.enter_context(embedded.services(state.root, durable=True))
        commands = Commands(state, port=1, database_url=running.database_url, redis_url=running.redis_url)
        settings = commands.control_plane | {"EXTENDER_PORT": str(port)}
        _fill(settings, plane.kubeconfig(), nodes, dra=dra)
        for name in ("clusters", "extender") if with_ledger else ():
            stack.enter_context(_process(name, settings))
        if with_ledger and not dra:
            stage.wait(lambda: _is_ready(port), "answers of the extender")
        yield stage


def _is_ready(port: int) -> bool:
    """Return True once the extender has listed all nodes and pods."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
            return bool(answer.read().startswith(b"ok"))
    except OSError:
        return False


def _fill(settings: dict[str, str], kubeconfig: str, nodes: int, *, dra: bool) -> None:
    """Fill the ledger in a process of its own: settings are read once in each."""
    program = "from benchmarks import dra; dra.fill()"
    variables = {"BENCH_KUBECONFIG": kubeconfig, "BENCH_NODES": str(nodes), "BENCH_DRA": "1" if dra else ""}
    subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **settings, **variables}, cwd=ROOT, check=True,
    )  # fmt: skip


def fill() -> None:
    """Migrate; write nodes with GPUs, a cluster, and a tenant with quota."""
    import django  # noqa: PLC0415

    django.setup()
    from django.core.management import call_command  # noqa: PLC0415

    call_command("migrate", verbosity=0)
    from apps.clusters.services import bindings, clusters  # noqa: PLC0415
    from apps.nodes.models import Node  # noqa: PLC0415
    from apps.quotas.models import Pool  # noqa: PLC0415
    from apps.quotas.principals import SYSTEM  # noqa: PLC0415
    from apps.quotas.services import quotas, tenants  # noqa: PLC0415
    from tests.cast import Machine  # noqa: PLC0415

    pool = Pool.objects.first() or tenants.create_pool(principal=SYSTEM, name="default")
    for number in range(int(os.environ["BENCH_NODES"])):
        Machine(f"node-{number}", pool, gpus=GPUS)
    Node.objects.update(last_seen_at="2100-01-01T00:00:00Z")
    for node in Node.objects.all():
        Node.objects.filter(pk=node.pk).update(kubernetes_node=node.name, dra=bool(os.environ["BENCH_DRA"]))
    tenant = tenants.create_tenant(principal=SYSTEM, slug="team", name="Team")
    for resource in ("core_percent", "memory_mib"):
        quotas.create_quota(principal=SYSTEM, tenant=tenant, pool=pool, resource=resource, hard=10**9)
    kubeconfig = os.environ["BENCH_KUBECONFIG"]
    cluster = clusters.connect(principal=SYSTEM, name="kube", pool=pool, kubeconfig=kubeconfig)
    bindings.bind(principal=SYSTEM, cluster=cluster, tenant=tenant, namespace=NAMESPACE)


@contextmanager
def _process(name: str, settings: dict[str, str]) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "manage.py", name], env={**os.environ, **settings}, cwd=ROOT,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=20)


if __name__ == "__main__":
    main()
