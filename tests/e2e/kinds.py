"""The kinds of shares, what differs between them, and one node on which claims of all of them are tried."""

import json
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.agent.stage import BUILD, Stage, tether
from tests.cli.commands import Ended, Shell, new_name
from tests.platform import Json, Platform, until

GPULOAD = str(BUILD / "gpuload")
MODEL = "NVIDIA A100-SXM4-40GB"
# Each claim asks for this and has it: the core and memory of the smallest instance of an A100, so that all are alike.
CORE, MEMORY_MIB, PROFILE = 14, 4864, "1g.5gb"
LESS_CORE = 7
# The simulated driver's context of a program.
CONTEXT_MIB = 128
PRICE = 3600


@dataclass(frozen=True)
class Kind:
    """A way to hold a share: how it is asked for, and the words with which it refuses what it cannot do."""

    name: str
    backend: str = "turns"
    # Fields of the API, which are options of the command as well.
    asked: tuple[tuple[str, str], ...] = ()
    no_resize: str | None = None
    no_suspension: str | None = None
    no_move: str | None = None
    # The part of the GPU that a program sees as the whole of it, in percent.
    seen_percent: int = 100

    @property
    def is_instance(self) -> bool:
        return bool(self.asked)

    @property
    def acts(self) -> list[str]:
        """Return what the audit log has of a claim, in this order."""
        between = [] if self.no_resize else ["claim.resize"]
        between += [] if self.no_suspension else ["claim.suspend", "claim.resume"]
        return ["claim.create", *between, "claim.release"]


UNDER_MPS = "the driver cannot move the memory of clients of MPS: programs there can be neither suspended nor moved."
IN_AN_INSTANCE = "The driver cannot suspend programs in a MIG instance: release the claim, and make it anew."
KINDS = (
    Kind(
        "mig",
        asked=(("isolation", "hard"),),
        no_resize=f"The claim has a MIG instance of {PROFILE}, so its core_request stays: make another claim, and "
        "release this one.",
        no_suspension=IN_AN_INSTANCE,
        seen_percent=CORE,
    ),
    Kind("turns"),
    Kind("mps", backend="mps", no_suspension=UNDER_MPS, seen_percent=CORE),
    Kind("native", backend="native"),
)


class Fleet:
    """A tenant with room for two claims, and a node of two GPUs, the first of them in MIG mode, whose agent runs."""

    def __init__(self, platform: Platform, directory: Path, run_dir: Path) -> None:
        self.platform, self.directory = platform, directory
        self.name = new_name("kinds")
        self.tenant = platform.new_tenant(self.name, core=2 * CORE, memory_mib=2 * MEMORY_MIB)
        platform.granted("POST", "pools/", {"name": self.name})
        price = {"gpu_model": MODEL, "pool": self.name, "valid_from": "2020-01-01", "per_gpu_hour": str(PRICE)}
        platform.granted("POST", "prices/", price)
        made = platform.granted("POST", "nodes/", {"name": self.name, "pool": self.name})
        self.stage = Stage(directory, run_dir, None, gpus=2, name=self.name, shape=("--model", MODEL, "--mig", "0"))
        token = {"GPUCLOUD_ENROL_TOKEN": made["enrolment_token"], "GPUCLOUD_SUSPEND_MEMORY_MIB": str(MEMORY_MIB)}
        self.stage.start(server=platform.url, **token)
        until(lambda: platform.granted("GET", f"nodes/{self.name}/")["state"] == "ready", what="the node to be ready")
        member = {"name": self.name, "tenant": self.tenant, "role": "admin"}
        self.token = platform.granted("POST", "tokens/", member)["token"]

    def series(self) -> list[tuple[dict[str, str], str, float]]:
        """Return labels, name and value of each series of the server's metrics that has this tenant's name."""
        request = urllib.request.Request(  # noqa: S310 - the address is ours
            f"{self.platform.url}/metrics", headers={"Authorization": f"Bearer {self.platform.token}"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            lines = [line for line in answer.read().decode().splitlines() if f'"{self.tenant}"' in line]
        found = []
        for line in lines:
            name, _, rest = line.partition("{")
            labels, _, value = rest.rpartition("} ")
            pairs = (pair.split("=", 1) for pair in labels.split(","))
            found.append(({key: text.strip('"') for key, text in pairs}, name, float(value)))
        return found

    def close(self) -> None:
        self.stage.close()


class User:
    """A person of the tenant, by the API and by the command, while the pool has one kind of claims."""

    def __init__(self, fleet: Fleet, kind: Kind) -> None:
        self.fleet, self.kind, self.platform = fleet, kind, fleet.platform
        fleet.platform.granted("PATCH", f"pools/{fleet.name}/", {"backend": kind.backend})
        home = fleet.directory / kind.name
        home.mkdir()
        self._shell = Shell(home, GPUCLOUD_URL=self.platform.url, GPUCLOUD_TOKEN=fleet.token)
        self.log = home / "program"
        self.program: subprocess.Popen[bytes] | None = None

    def call(self, method: str, path: str, body: Json | None = None) -> tuple[int, Any]:
        """Return the status and the body of a request."""
        answer = self.platform.call(method, path, body, token=self.fleet.token)
        return answer.status, answer.body

    def get(self, path: str, **headers: str) -> Any:
        answer = self.platform.call("GET", path, None, token=self.fleet.token, **headers)
        assert answer.status == 200, answer
        return answer.body

    def command(self, *line: str) -> Ended:
        return self._shell.run(*line)

    def data(self, *line: str) -> Any:
        """Return the JSON of a command that must succeed."""
        return self._shell.data(*line)

    def read(self, claim: Json) -> Json:
        found: Json = self.get(f"claims/{claim['uid']}/")
        return found

    def used(self) -> tuple[int, int]:
        """Return the core and memory that the tenant's quotas have charged."""
        used = self.platform.used(self.fleet.tenant)
        return used["core_percent"], used["memory_mib"]

    def body(self, name: str) -> Json:
        """Return a claim as the API is asked for it; only the fields of the kind differ."""
        share = {"name": name, "core_request": CORE, "memory_mib": MEMORY_MIB}
        return {"tenant": self.fleet.tenant, "pool": self.fleet.name, **share, **dict(self.kind.asked)}

    def line(self, name: str) -> list[str]:
        """Return the command that asks for the same."""
        share = ["--name", name, "--core", str(CORE), "--memory", f"{MEMORY_MIB}MiB"]
        of_kind = [word for field, value in self.kind.asked for word in (f"--{field}", value)]
        return ["claim", "create", "--pool", self.fleet.name, *share, *of_kind]

    def start(self, claim: str, *options: str) -> None:
        """Start a program under the claim; its lines are in the log."""
        line = tether(*self._shell.line("claim", "exec", claim, "--", GPULOAD, "--json", *options))
        with self.log.open("wb") as output:
            self.program = subprocess.Popen(line, env=self._shell.environment, stdout=output, stderr=output)

    def lines(self) -> list[Json]:
        """Return what the program has printed so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line[:1] + line[-1:] == "{}"]

    def kernels(self) -> int:
        """Return how many kernels the program has finished."""
        return max((line.get("kernels", 0) for line in self.lines()), default=0)

    def share(self) -> float:
        """Return the part of the GPU that the program computes with from now on, in percent, by its own figures."""
        begun = len(self.lines())

        def shares() -> list[float]:
            return [line["share_percent"] for line in self.lines()[begun:] if "share_percent" in line][1:]

        # The first of them began before.
        until(lambda: len(shares()) > 1, what="the program to print its shares")
        return sum(shares()) / len(shares()) * self.kind.seen_percent / 100

    def close(self) -> None:
        if self.program is not None:
            self.program.kill()
            self.program.wait()
        for claim in self.platform.granted("GET", f"claims/?tenant={self.fleet.tenant}")["results"]:
            self.platform.granted("DELETE", f"claims/{claim['uid']}/?wait=30")


def an_hour_ago() -> str:
    """Return the beginning of a report."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 3600))
