"""A remote share on one GPU machine, without a control plane: the endpoint, remoting servers under claims, clients.

    python -m benchmarks.remote --component DIRECTORY run --core 25 --memory 8GiB --delay-ms 1 -- python train.py

The endpoint and the servers' hosts are the agent's own programs, the client is the command's. The network between them
is a program of this directory (`delay.c`) that holds each byte for half of --delay-ms, each way. Needs root: remoting
servers run as another user. The client's programs see no `/dev/nvidia*` (a mount namespace hides them).
"""

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from agent import pinned_tls
from agent.remote import component
from benchmarks.shim.pages import Claim, Library
from gpucloud_cli import remote_client
from gpucloud_cli.remote_client import RemoteShare

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "libvcuda" / "build"
USER, MOST_BYTES = 61000, 64 << 10
HIDE = 'for d in /dev/nvidia*; do mount --bind /dev/null "$d"; done; mount -t tmpfs none "$1"; shift; exec "$@"'


class Node:
    """One machine's endpoint and hosts."""

    def __init__(self, found: component.Component, gpu: str, driver: list[str]) -> None:
        # Where another user may read.
        self.place = Path(tempfile.mkdtemp(prefix="remote-", dir="/dev/shm"))
        self.place.chmod(0o755)
        for path in (found.path, BUILD / "libvcuda.so"):
            shutil.copy(path, self.place)
            (self.place / path.name).chmod(0o755)
        self._found, self.gpu, self._driver = found, gpu, driver
        self.library = Library(BUILD)
        self.claims: dict[str, Claim] = {}
        (self.place / "claims").mkdir()
        self._hosts: dict[str, tuple[socket.socket, subprocess.Popen[bytes]]] = {}
        self._numbers = itertools.count(1)
        self.arbiter = subprocess.Popen([BUILD / "vcuda-arbiter", self.place / "claims"])
        identity = pinned_tls.make_identity()
        self.fingerprint = identity.fingerprint
        self._control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener = pinned_tls.listen("127.0.0.1:0", backlog=16)
        self.port: int = listener.getsockname()[1]
        self._endpoint = _spawn("agent.remote.endpoint", its, listener)
        self._tell({"key": identity.key, "certificate": identity.certificate, "uid": 65534})
        self.counts: dict[str, Any] = {}
        threading.Thread(target=self._serve, daemon=True).start()

    def claim(self, percent: int, memory: int, **other: Any) -> str:
        """Make a claim; return its uid."""
        uid = str(uuid.uuid4())
        made = self.claims[uid] = Claim(self.library, self.place / "claims" / uid)
        made.limit(self.gpu, percent, memory=memory, **other)
        for path in (self.place / "claims" / uid).iterdir():
            os.chown(path, USER, USER) if path.name == "usage" else path.chmod(0o644)
        return uid

    def environment(self, uid: str) -> dict[str, str]:
        """Return the environment of a program under the claim."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": "/tmp",  # noqa: S108 - the driver's cache
            "GPUCLOUD_CLAIM_DIR": str(self.place / "claims" / uid),
            "LD_PRELOAD": str(self.place / "libvcuda.so"),
            "CUDA_VISIBLE_DEVICES": self.gpu,
            "LD_LIBRARY_PATH": ":".join(self._driver),
        }

    def open(self, uid: str, way: int | None = None, rate: int = 0) -> RemoteShare:
        """Return a client's port for the claim; `way`: the port of a network before this one."""
        key, digest = remote_client.new_key()
        ticket = secrets.token_urlsafe(32)
        known = hashlib.sha256(ticket.encode()).hexdigest()
        self._tell({"ticket": known, "claim": uid, "key": digest, "seconds": 60, "rate": rate})
        where = {"host": "127.0.0.1", "port": way or self.port, "fingerprint": self.fingerprint}
        share = RemoteShare({"claim": uid, "ticket": ticket, **where}, key, lambda words: print("client:", words))
        share.start()
        return share

    def close(self) -> None:
        """End all programs."""
        self._control.close()
        for control, _ in self._hosts.values():
            control.close()
        self.arbiter.terminate()
        for process in (self._endpoint, *(host for _, host in self._hosts.values()), self.arbiter):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
        shutil.rmtree(self.place, ignore_errors=True)

    def _tell(self, message: dict[str, Any]) -> None:
        self._control.send(json.dumps(message).encode())

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while message := self._control.recv(MOST_BYTES):
                said = json.loads(message)
                if "counts" in said:
                    self.counts[said["claim"]] = said["counts"]
                else:
                    self._connect(said["connect"], said["claim"])

    def _connect(self, number: int, uid: str) -> None:
        if uid not in self._hosts:
            mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._hosts[uid] = mine, _spawn("agent.remote.host", stdin=its)
            mine.send(json.dumps({"group": f"remote-{uid}", "memory_bytes": 64 << 30}).encode())
            mine.recv(MOST_BYTES)
            environment = self.environment(uid) | dict(self._found.kind.environment)
            order = {"uid": USER, "command": [str(self.place / self._found.path.name)], "environment": environment}
            mine.send(json.dumps({**order, "port": component.PORT}).encode())
        control = self._hosts[uid][0]
        control.send(json.dumps({"connect": next(self._numbers)}).encode())
        message, descriptors, _, _ = socket.recv_fds(control, MOST_BYTES, 1)
        if descriptors:
            socket.send_fds(self._control, [json.dumps({"connected": number}).encode()], descriptors)
            os.close(descriptors[0])
        else:
            self._tell({"refused": number, "words": message.decode()})


def _spawn(module: str, *sockets: socket.socket, stdin: socket.socket | None = None) -> "subprocess.Popen[bytes]":
    descriptors = [one.fileno() for one in sockets]
    command = [sys.executable, "-P", "-m", module, *map(str, descriptors)]
    paths = ":".join([str(ROOT), str(ROOT / "cli"), os.environ.get("PYTHONPATH", "")])
    made = subprocess.Popen(
        command, pass_fds=descriptors, stdin=stdin.fileno() if stdin else None, env={**os.environ, "PYTHONPATH": paths}
    )
    for one in (*sockets, *([stdin] if stdin else [])):
        one.close()
    return made


class Network:
    """A network with a delay, in front of a port."""

    def __init__(self, to_port: int, delay_ms: float) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        program = Path(tempfile.gettempdir()) / "remote-delay"
        if not program.exists():
            source = Path(__file__).with_name("delay.c")
            subprocess.run(["gcc", "-O2", "-pthread", "-o", program, source], check=True)
        words = [str(self.port), str(to_port), str(round(delay_ms * 500))]
        self._process = subprocess.Popen([program, *words])
        time.sleep(0.2)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def run_here(node: Node, uid: str, command: list[str], **more: Any) -> "subprocess.Popen[str]":
    """Start a program on this machine under the claim, as without a network."""
    environment = {**os.environ, **node.environment(uid)}
    return subprocess.Popen(command, env=environment, text=True, **more)


def run_remotely(
    share: RemoteShare, directory: Path, driver: str, command: list[str], **more: Any
) -> "subprocess.Popen[str]":
    """Start a program as on a machine without a GPU."""
    environment = remote_client.environment_of("lupine", directory, share.port, "-", os.environ)
    environment["LD_LIBRARY_PATH"] = f"{directory}:{directory.parent / 'deps'}"
    hidden = ["unshare", "-m", "sh", "-c", HIDE, "sh", driver, *command]
    return subprocess.Popen(hidden, env=environment, text=True, **more)


def gpu_uuid() -> str:
    """Return the first GPU's uuid."""
    told = subprocess.run(["nvidia-smi", "-L"], check=True, capture_output=True, text=True).stdout
    return told.split("UUID: ")[1].split(")")[0]


def main() -> int:
    """Run one program remotely, or here, under a claim."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--component", type=Path, required=True, help="with bin/lupine_driver_server and lib/")
    parser.add_argument("--driver", default="/usr/local/nvidia/lib64", help="the directory of the real libcuda.so.1")
    parser.add_argument("--core", type=int, default=100)
    parser.add_argument("--memory-mib", type=int, default=0, help="0: no limit")
    parser.add_argument("--delay-ms", type=float, default=0, help="there and back")
    parser.add_argument("--here", action="store_true", help="without a network, under the same claim")
    parser.add_argument("command", nargs="+")
    chosen = parser.parse_args()
    found = component.find(str(chosen.component / "bin" / "lupine_driver_server"), None)
    node = Node(found, gpu_uuid(), [chosen.driver, str(chosen.component / "deps")])
    network = None
    try:
        uid = node.claim(chosen.core, chosen.memory_mib << 20)
        if chosen.here:
            return run_here(node, uid, chosen.command).wait()
        network = Network(node.port, chosen.delay_ms) if chosen.delay_ms else None
        share = node.open(uid, network.port if network else None)
        code = run_remotely(share, chosen.component / "lib", chosen.driver, chosen.command).wait()
        print(share.totals)
        return code
    finally:
        if network is not None:
            network.close()
        node.close()


if __name__ == "__main__":
    sys.exit(main())
