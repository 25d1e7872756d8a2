"""`kubectl inspect gpushare`: gpushare's report, also of pods that gpucloud's webhook has rewritten.

gpushare's own plugin counts `aliyun.com/gpu-mem` only, of nodes and of pods. A rewritten pod asks
`tencent.com/vcuda-memory` instead, and its annotations name its GPUs.
"""

import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

Json = Mapping[str, Any]
GPUSHARE, GPUSHARE_COUNT, GPUSHARE_INDEX = "aliyun.com/gpu-mem", "aliyun.com/gpu-count", "ALIYUN_COM_GPU_MEM_IDX"
CORE, MEMORY, INDEX = "tencent.com/vcuda-core", "tencent.com/vcuda-memory", "tencent.com/predicate-gpu-idx-"
UNIT_MIB, WHOLE = 256, 100
GIB = 1024
# gpushare's plugin tells its unit by this: a GPU with more has so many MiB.
MOST_GIB = 100
PENDING = -1


@dataclass
class Shown:
    """A node of the report. `used`: memory by GPU and pod, in the report's unit."""

    name: str
    address: str
    count: int
    each: int
    used: dict[int, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))

    def on(self, gpu: int) -> int:
        """Return the memory that pods have of a GPU."""
        return sum(self.used.get(gpu, {}).values())

    @property
    def allocated(self) -> int:
        """The memory that pods have of the node."""
        return sum(self.on(gpu) for gpu in self.used)


@click.command(name="kubectl-inspect-gpushare")
@click.argument("node", required=False)
@click.option("-d", "--details", is_flag=True, help="Show the pods on each GPU.")
@click.option("--mib", is_flag=True, help="Count in MiB; default: as gpushare's nodes count, else in GiB.")
def main(node: str | None, details: bool, mib: bool) -> None:
    """Show the memory of GPUs that the pods of a cluster have, by node, as gpushare's kubectl plugin does."""
    nodes = [_get("node", node)] if node else _get("nodes")["items"]
    pods = _get("pods", "--all-namespaces")["items"]
    unit, unit_mib = ("MiB", 1) if mib or _counts_in_mib(nodes) else ("GiB", GIB)
    shown = report(nodes, pods, unit_mib=unit_mib)
    click.echo("\n".join(_details(shown, unit) if details else _summary(shown, unit)))


def report(nodes: Sequence[Json], pods: Sequence[Json], *, unit_mib: int) -> list[Shown]:
    """Return the nodes with GPUs and what live pods have of them."""
    made = {one.name: one for node in nodes if (one := _node(node, unit_mib)) is not None}
    for pod in pods:
        one = made.get(pod["spec"].get("nodeName", ""))
        if one is None or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            continue
        name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        for gpu, amount in _uses(pod, one.each, unit_mib):
            one.used[gpu][name] = one.used[gpu].get(name, 0) + amount
    return sorted(made.values(), key=lambda one: one.name)


def _get(*words: str) -> Any:
    try:
        said = subprocess.run(["kubectl", "get", "-o", "json", *filter(None, words)], capture_output=True, check=False)
    except OSError as error:
        raise click.ClickException(f"kubectl does not start: {error.strerror}.") from error
    if said.returncode:
        raise click.ClickException(said.stderr.decode(errors="replace").strip())
    return json.loads(said.stdout)


def _counts_in_mib(nodes: Sequence[Json]) -> bool:
    return any(
        _amount(there, GPUSHARE) > MOST_GIB * max(_amount(there, GPUSHARE_COUNT), 1)
        for there in (node["status"].get("allocatable") or {} for node in nodes)
    )


def _node(node: Json, unit_mib: int) -> Shown | None:
    there = node["status"].get("allocatable") or {}
    count, memory = _amount(there, CORE) // WHOLE, _amount(there, MEMORY) * UNIT_MIB // unit_mib
    if not count:
        count, memory = _amount(there, GPUSHARE_COUNT), _amount(there, GPUSHARE)
    if not count:
        return None
    addresses = node["status"].get("addresses") or []
    address = next((one["address"] for one in addresses if one.get("type") == "InternalIP"), "unknown")
    return Shown(node["metadata"]["name"], address, count, memory // count)


def _uses(pod: Json, each: int, unit_mib: int) -> Iterator[tuple[int, int]]:
    """Yield GPU and memory of each of the pod's containers; PENDING if no annotation names the GPU."""
    said = pod["metadata"].get("annotations") or {}
    for place, container in enumerate(pod["spec"]["containers"]):
        limits = (container.get("resources") or {}).get("limits") or {}
        if core := _amount(limits, CORE):
            amount = each if core >= WHOLE else -(-_amount(limits, MEMORY) * UNIT_MIB // unit_mib)
            for gpu in _indexes(said.get(f"{INDEX}{place}", "")):
                yield gpu, amount
        elif memory := _amount(limits, GPUSHARE):
            yield _indexes(said.get(GPUSHARE_INDEX, ""))[0], memory


def _indexes(text: str) -> list[int]:
    return [int(word) for word in text.split(",")] if re.fullmatch(r"\d{1,4}(,\d{1,4})*", text) else [PENDING]


def _amount(amounts: Json, name: str) -> int:
    text = str(amounts.get(name, 0)).strip()
    thousands = {"k": 1000, "M": 10**6, "Ki": 1 << 10, "Mi": 1 << 20}
    match = re.fullmatch(r"(\d+)(k|M|Ki|Mi)?", text)
    return int(match[1]) * thousands.get(match[2], 1) if match else 0


def _summary(shown: Sequence[Shown], unit: str) -> list[str]:
    most = max((one.count for one in shown), default=0)
    pending = any(PENDING in one.used for one in shown)
    heads = ["NAME", "IPADDRESS", *(f"GPU{gpu}(Allocated/Total)" for gpu in range(most))]
    heads += [*(["PENDING(Allocated)"] if pending else []), f"GPU Memory({unit})"]
    lines = [heads]
    for one in shown:
        gpus = [f"{one.on(gpu)}/{one.each}" if gpu < one.count else "0/0" for gpu in range(most)]
        waiting = [str(one.on(PENDING))] if pending else []
        lines.append([one.name, one.address, *gpus, *waiting, f"{one.allocated}/{one.each * one.count}"])
    return [*_aligned(lines), *_total(shown)]


def _details(shown: Sequence[Shown], unit: str) -> list[str]:
    text = []
    for one in shown:
        gpus = [*range(one.count), *([PENDING] if PENDING in one.used else [])]
        heads = [f"GPU{gpu}(Allocated)" if gpu != PENDING else "Pending(Allocated)" for gpu in gpus]
        lines = [["NAME", "NAMESPACE", *heads]]
        for pod in sorted({name for there in one.used.values() for name in there}):
            namespace, _, name = pod.partition("/")
            lines.append([name, namespace, *(str(one.used.get(gpu, {}).get(pod, 0)) for gpu in gpus)])
        total = one.each * one.count
        text += ["", f"NAME:       {one.name}", f"IPADDRESS:  {one.address}", "", *_aligned(lines)]
        text += [f"Allocated :  {one.allocated} ({_percent(one.allocated, total)}%)", f"Total :      {total} {unit}"]
    return [*text, "", *_total(shown)]


def _total(shown: Sequence[Shown]) -> list[str]:
    allocated, total = sum(one.allocated for one in shown), sum(one.each * one.count for one in shown)
    line = f"{allocated}/{total} ({_percent(allocated, total)}%)"
    return ["-" * 60, "Allocated/Total GPU Memory In Cluster:", line]


def _percent(part: int, whole: int) -> int:
    return part * 100 // whole if whole else 0


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
