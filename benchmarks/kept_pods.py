"""`make bench-kept-pods`: the memory of the watch of a large cluster: its pods, listed and kept.

Each way is a process of its own: it lists the pods page by page, as an API server of 10 KB a pod answers, keeps them as
the watch does, with what its queue knows of each, and reads its own resident memory. The first way is that of version
0.1: every field of every pod, decoded after the last page.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from benchmarks.report import Row, print_report

PAGE = 500
# No service is needed: nothing is recorded.
NO_SERVICES = {
    "SECRET_KEY": "only-for-this-measurement-0123456789abcdef0123456789abcdef",
    "DATABASE_URL": "postgresql://nobody@/nothing?host=/nonexistent",
    "REDIS_URL": "unix:///nonexistent/valkey.sock",
}
MIB = 1024
SINCE = "2026-11-26T00:00:00Z"


def main() -> None:
    """Measure each way in a process of its own; print."""
    parser = argparse.ArgumentParser(prog="make bench-kept-pods", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pods", type=int, default=20_000, help="pods of the cluster (20000)")
    parser.add_argument("--bytes", type=int, default=10_000, help="size of each (10000)")
    parser.add_argument("--way", choices=["every field", "what is read"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpucloud.settings")
    os.environ |= NO_SERVICES
    if arguments.way is not None:
        sys.stdout.write(json.dumps(_measure(arguments.way, arguments.pods, arguments.bytes)))
        return
    command = [sys.executable, "-m", "benchmarks.kept_pods", f"--pods={arguments.pods}", f"--bytes={arguments.bytes}"]
    rows: list[Row] = []
    for way in ("every field", "what is read"):
        done = subprocess.run([*command, "--way", way], stdout=subprocess.PIPE, check=True)
        rows.append({"way": way, "pods": arguments.pods, **json.loads(done.stdout)})
    print_report("kept pods", rows)


def _measure(way: str, count: int, size: int) -> dict[str, float]:
    import django  # noqa: PLC0415 - the settings read the environment that was just made

    django.setup()
    from apps.clusters.kube.reflector import KEPT_PODS, Kind, Observation, Reflector  # noqa: PLC0415
    from apps.clusters.pod_queue import PodQueue  # noqa: PLC0415

    every_field = Kind("pods", KEPT_PODS.path, dict[str, Any], KEPT_PODS.query)
    kept: dict[str, Any] = {}
    queue = PodQueue()

    def see(seen: Observation) -> None:
        kept.update({item["metadata"]["uid"]: item for item in seen.objects})
        for uid, pod in kept.items():
            queue.put(uid, pod)
        while work := queue.take(50):
            queue.done(work)

    server: Any = _Server(count, size, at_once=way == "every field")
    kind = every_field if way == "every field" else KEPT_PODS
    reflector = Reflector(cast(Any, server), kind, see=see, fail=lambda _, text: sys.exit(text))
    before = _status("VmRSS")
    server.stop = reflector.stop
    reflector.run()
    assert len(kept) == count
    now, peak = _status("VmRSS"), _status("VmHWM")
    return {"before MiB": before, "kept MiB": now, "peak MiB": peak, "KiB a pod": (now - before) * MIB / count}


class _Server:
    """An API server's lists: pods with what `kubectl apply`, controllers and a kubelet write to them."""

    def __init__(self, count: int, size: int, *, at_once: bool) -> None:
        self._count, self._size, self._at_once = count, size, at_once
        self.stop: Callable[[], None] = lambda: None

    def pages(self, path: str, **query: str) -> Iterator[Any]:
        del path, query
        # All pages are there before the first is decoded, or one after the other.
        return iter(list(self._pages())) if self._at_once else self._pages()

    def watch(self, path: str, version: str, **_: Any) -> Iterator[Any]:
        del path, version
        self.stop()
        yield from ()

    def _pages(self) -> Iterator[Any]:
        import msgspec  # noqa: PLC0415

        from apps.clusters.kube.objects import Page  # noqa: PLC0415

        for first in range(0, self._count, PAGE):
            items = [_pod(number, self._size) for number in range(first, min(first + PAGE, self._count))]
            body = msgspec.json.encode({"metadata": {"resourceVersion": "1"}, "items": items})
            del items
            yield msgspec.json.decode(body, type=Page)


def _pod(number: int, size: int) -> dict[str, Any]:
    limits = {"tencent.com/vcuda-core": "10", "tencent.com/vcuda-memory": "9", "cpu": "2", "memory": "8Gi"}
    annotations = {
        "tencent.com/predicate-gpu-idx-0": str(number % 8),
        "tencent.com/predicate-node": f"node-{number // 80}",
        "tencent.com/predicate-time": str(1_764_115_200_000_000_000 + number),
        "tencent.com/gpu-assigned": "false",
    }
    applied = "kubectl.kubernetes.io/last-applied-configuration"
    env = [{"name": f"VARIABLE_{place}", "value": f"value {place} of {number}"} for place in range(20)]
    main = {"name": "main", "image": "cuda", "env": env, "resources": {"limits": limits, "requests": limits}}
    state = {"running": {"startedAt": SINCE}}
    kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    made: dict[str, Any] = {
        "metadata": {
            "name": f"train-{number}", "namespace": f"team-{number % 40}", "uid": f"uid-{number}-0123456789abcdef",
            "resourceVersion": str(number), "annotations": annotations, "labels": {"app": f"train-{number % 100}"},
            "managedFields": [],
        },
        "spec": {
            "nodeName": f"node-{number // 80}", "schedulerName": "default-scheduler",
            "containers": [main],
            "volumes": [{"name": f"volume-{place}", "emptyDir": {}} for place in range(5)],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}] * 3,
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": kind, "status": "True", "lastTransitionTime": SINCE} for kind in kinds],
            "containerStatuses": [{"name": "main", "state": state, "lastState": {}, "image": "cuda", "ready": True}],
        },
    }  # fmt: skip
    # A third of what is left is text, the rest the fields that managers own, one by one.
    rest = max(0, size - len(json.dumps(made)))
    annotations[applied] = "x" * (rest // 3)
    fields: dict[str, Any] = {f"f:field-{place:04}": {".": {}} for place in range((rest - rest // 3) // 26)}
    made["metadata"]["managedFields"] = [{"manager": "kubectl", "fieldsV1": fields}]
    return made


def _status(field: str) -> float:
    """Return a size of this process in MiB."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / MIB


if __name__ == "__main__":
    main()
