"""`make bench-devices`: what `manage.py clusters` spends twice a second on reading the devices that it publishes.

Nodes of 8 GPUs with links, and ResourceClaims placed on some of them. A first read reads everything, as one does after
a start; then nothing has changed, one node has, or a twentieth of the nodes. PostgreSQL's time is that of the
connection's own process.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.own_services import own_services
from benchmarks.report import Row, print_report

GPUS = 8
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="make bench-devices", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000, help="nodes of 8 GPUs (1000)")
    parser.add_argument("--claims", type=int, default=300, help="placed ResourceClaims (300)")
    parser.add_argument("--reads", type=int, default=40, help="reads of each kind (40)")
    arguments = parser.parse_args()
    with own_services(BENCH_KUBECONFIG=_KUBECONFIG, BENCH_NODES=str(arguments.nodes), BENCH_DRA="1"):
        from benchmarks import dra  # noqa: PLC0415 - it reads the environment

        dra.fill()
        _measure(arguments.nodes, arguments.claims, arguments.reads)


_KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: x
contexts: [{name: x, context: {cluster: x, user: x}}]
clusters: [{name: x, cluster: {server: "https://127.0.0.1:1", insecure-skip-tls-verify: true}}]
users: [{name: x, user: {token: x}}]
"""


def _measure(nodes: int, claims: int, reads: int) -> None:
    from django.db import connection  # noqa: PLC0415

    from apps.clusters.dra.devices import DeviceReader  # noqa: PLC0415
    from apps.clusters.models import Cluster  # noqa: PLC0415
    from apps.nodes.models import Gpu  # noqa: PLC0415

    cluster = Cluster.objects.get()
    _place(cluster, claims)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    keys = list(Gpu.objects.order_by("node_id", "index").values_list("pk", flat=True))[::GPUS]
    reader, rows = DeviceReader(cluster), list[Row]()
    for kind, count in (("all", 0), ("none", 0), ("one node", 1), (f"{nodes // 20} nodes", nodes // 20)):
        own, theirs, wall = 0.0, 0.0, 0.0
        for turn in range(reads):
            if kind == "all":
                reader = DeviceReader(cluster)
            Gpu.objects.filter(pk__in=keys[:count]).update(unhealthy=str(turn))
            before, at, begun = time.process_time(), _cpu_seconds(pid), time.perf_counter()
            reader.read()
            wall += time.perf_counter() - begun
            own, theirs = own + time.process_time() - before, theirs + _cpu_seconds(pid) - at
        ms = 1e3 / reads
        rows.append(
            {"nodes": nodes, "changed": kind, "reads": reads, "ms": wall * ms, "our CPU ms": own * ms,
             "PostgreSQL's CPU ms": theirs * ms}
        )  # fmt: skip
    print_report("devices", rows)


def _place(cluster: Any, count: int) -> None:
    from apps.clusters.dra import ledger  # noqa: PLC0415
    from apps.nodes.models import Gpu  # noqa: PLC0415
    from tests.clusters.dra import things  # noqa: PLC0415

    gpus = Gpu.objects.select_related("node").order_by("index", "node_id")[:count]
    for number, gpu in enumerate(gpus):
        thing = things.claim(f"c{number}", "bench", core=10, memory="2Gi")
        thing["metadata"] |= {"uid": f"00000000-0000-4000-8000-{number:012}", "resourceVersion": "1"}
        results = [things.result(gpu.uuid, gpu.node.kubernetes_node, core=10, memory_mib=2048)]
        thing["status"] = {"allocation": {"devices": {"results": results}}}
        ledger.follow(cluster=cluster, thing=thing, labels=dict)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


if __name__ == "__main__":
    main()
