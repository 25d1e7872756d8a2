"""`python -m benchmarks.extender`: kube-scheduler's wait for the filter, with nothing else running.

Three processes on loopback: this one, which asks as kube-scheduler does (one request after the other, one connection);
the extender's own listener with the cluster in its memory; and a stand-in for the API server that answers each patch of
a pod at once. No database, no Redis, no worker. Nodes have 8 GPUs, three quarters of them in use by earlier pods; pods
request parts of a GPU, one, two or four, and a tenth of them more than is free.
"""

import argparse
import asyncio
import http.client
import json
import multiprocessing
import os
import random
import socket
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import django
import msgspec
import uvicorn

# The listener's modules load models; nothing here asks a database.
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpucloud.settings")
for name, value in (("SECRET_KEY", "x" * 50), ("DATABASE_URL", "postgres://x@/x"), ("REDIS_URL", "redis://x")):
    os.environ.setdefault(name, value)
django.setup()

from apps.clusters.extender.cluster import Extended  # noqa: E402
from apps.clusters.extender.handler import ExtenderHandler  # noqa: E402
from apps.clusters.extender.listener import configuration  # noqa: E402
from apps.clusters.kube.client import Client  # noqa: E402
from apps.clusters.kube.mirror import Mirror  # noqa: E402
from apps.clusters.kube.objects import Node, Pod  # noqa: E402
from apps.clusters.kube.reflector import Observation  # noqa: E402
from benchmarks.report import Row, print_report, quantile  # noqa: E402
from gpucloud.fastpath import gc_tuning  # noqa: E402

GPUS, UNITS = 8, 320
ASKED = [(10, 8), (25, 80), (30, 60), (50, 160), (50, 40), (100, 1), (100, 1), (200, 1), (400, 1), (1600, 1)]
CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
Json = dict[str, Any]


def node(number: int, size_bytes: int) -> Json:
    """Return a node padded to the requested size.

    The other fields of a real node (images, conditions, addresses) are not read.
    """
    amounts = {"cpu": "128", "memory": "1056Gi", "pods": "110", CORE: str(GPUS * 100), MEMORY: str(GPUS * UNITS)}
    made: Json = {
        "metadata": {"name": f"node-{number:05}", "uid": f"u{number}", "labels": {"nvidia-device-enable": "enable"}},
        "spec": {},
        "status": {"capacity": amounts, "allocatable": amounts, "images": []},
    }
    images = made["status"]["images"]
    while len(json.dumps(made)) < size_bytes:
        images.append({"names": [f"registry.example.org/team/image@sha256:{len(images):064}"], "sizeBytes": 123456789})
    return made


def pod(name: str, core: int, memory: int, annotations: Json, *, on: str = "") -> Json:
    """Return a pod with one container."""
    limits = {CORE: str(core), MEMORY: str(memory), "cpu": "4", "memory": "16Gi"}
    metadata = {"name": name, "namespace": "ml", "uid": f"u-{name}", "annotations": annotations, "resourceVersion": "1"}
    container = {"name": "main", "image": "registry.example.org/train:1", "resources": {"limits": limits}}
    return {"metadata": metadata, "spec": {"containers": [container], "nodeName": on}, "status": {"phase": "Running"}}


def running(nodes: int, draw: random.Random) -> list[Json]:
    """Return running pods: one on each GPU of three in four."""
    found = []
    for number in range(nodes):
        for index in range(GPUS):
            if draw.random() < 0.75:
                core, memory = draw.choice(ASKED[:6])
                chosen = {"tencent.com/predicate-gpu-idx-0": str(index)}
                found.append(pod(f"r{number}-{index}", core, memory, chosen, on=f"node-{number:05}"))
    return found


def serve_api(link: socket.socket, pods: dict[str, Json]) -> None:
    """Answer PATCH requests for pods as an API server does."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # As Go's servers do: else the body of an answer waits 40 ms for the acknowledgement of its headers.
        disable_nagle_algorithm = True

        def do_PATCH(self) -> None:
            name = self.path.rpartition("/")[2]
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            item = pods[name]
            item["metadata"]["annotations"] = body["metadata"]["annotations"]
            item["metadata"]["resourceVersion"] = "2"
            text = json.dumps(item).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = link
    server.serve_forever()


def serve_extender(link: socket.socket, api: str, nodes: list[Json], pods: list[Json]) -> None:
    """Serve with the extender's own listener."""

    named = {"contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}], "current-context": "it"}
    config = {**named, "clusters": [{"name": "it", "cluster": {"server": api}}], "users": [{"name": "it", "user": {}}]}
    mirror = Mirror()
    mirror.see(Observation("nodes", tuple(msgspec.convert(item, Node) for item in nodes), whole=True))
    mirror.see(Observation("pods", tuple(msgspec.convert(item, Pod) for item in pods), whole=True))
    # As the command does once it has read its cluster.
    gc_tuning.freeze_startup_objects()
    handler = ExtenderHandler({"kube": Extended("kube", Client(config), mirror)}, networks=None, version="bench")
    server = uvicorn.Server(configuration(handler))
    asyncio.run(server.serve(sockets=[link]))


def make_socket() -> socket.socket:
    """Return a socket as the listener makes its own from host and port.

    asyncio disables Nagle's algorithm only if the socket's protocol is TCP: else answers sometimes wait 40 ms.
    """
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.bind(("127.0.0.1", 0))
    made.listen()
    return made


def measure(
    nodes: int, size_bytes: int, *, by_name: bool, requests: int, seed: int
) -> tuple[list[float], int, int, float]:
    """Return seconds of each request, bytes of one, pods that found a node, and the extender's CPU for each."""
    draw = random.Random(seed)  # noqa: S311
    fleet = [node(number, 400 if by_name else size_bytes) for number in range(nodes)]
    asked = [pod(f"p{number}", *draw.choice(ASKED), {}) for number in range(requests)]
    links = [make_socket() for _ in range(2)]
    api = f"http://127.0.0.1:{links[0].getsockname()[1]}"
    begun: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
        (serve_api, (links[0], {item["metadata"]["name"]: item for item in asked})),
        (serve_extender, (links[1], api, fleet, running(nodes, draw))),
    ]
    processes = [multiprocessing.get_context("fork").Process(target=target, args=args) for target, args in begun]
    for process in processes:
        process.start()
    try:
        whole = json.dumps({"metadata": {}, "items": [] if by_name else fleet}).encode()
        names = json.dumps([item["metadata"]["name"] for item in fleet]).encode()
        rest = b',"Nodes":null,"NodeNames":' + names + b"}" if by_name else b',"Nodes":' + whole + b',"NodeNames":null}'
        seconds, length, placed = _ask(links[1].getsockname()[1], asked, rest)
        return seconds, length, placed, cpu_seconds(processes[1].pid) / len(asked)
    finally:
        for process in processes:
            process.terminate()
            process.join()
        for link in links:
            link.close()


def cpu_seconds(pid: int | None) -> float:
    """Return the processor time of the process, in user mode and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _ask(port: int, asked: list[Json], rest: bytes) -> tuple[list[float], int, int]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    seconds, placed, body = list[float](), 0, b""
    for number, item in enumerate(asked):
        body = b'{"Pod":' + json.dumps(item).encode() + rest
        begun = time.perf_counter()
        connection.request("POST", "/scheduler/predicates", body)
        response = connection.getresponse()
        said = response.read()
        seconds.append(time.perf_counter() - begun)
        answer = json.loads(said)
        assert response.status == 200, said[:200]
        assert not answer["Error"], answer["Error"]
        placed += bool(answer["NodeNames"] or (answer["Nodes"] or {}).get("items"))
        if number == 0:
            seconds.clear()  # every node's view is made with the first request after a start
    return seconds, len(body), placed


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    rows: list[Row] = []
    for title, nodes, size, by_name in (
        ("1,000 nodes of 1.5 KB", 1000, 1536, False),
        ("1,000 nodes of 10 KB", 1000, 10_240, False),
        ("5,000 nodes by name", 5000, 0, True),
    ):
        for run in range(options.runs):
            seconds, length, placed, cpu = measure(nodes, size, by_name=by_name, requests=options.requests, seed=run)
            milliseconds = [value * 1000 for value in seconds]
            figures = {f"p{share}_ms": quantile(milliseconds, share / 100) for share in (50, 95, 99)}
            facts = {"most_ms": max(milliseconds), "cpu_ms": cpu * 1000, "body_mb": length / 1e6, "placed": placed}
            rows.append({"request": title, "run": run + 1, **figures, **facts})
    print_report("extender", rows)


if __name__ == "__main__":
    main()
