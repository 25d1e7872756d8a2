"""A second, independent implementation of gpu-admission's answers: over JSON, step by step, without any cache.

It shares nothing with `apps.clusters`: an equal mistake in both is a misreading of the original.
"""

import copy
import math
import re
from typing import Any

CORE = "tencent.com/vcuda-core"
MEMORY = "tencent.com/vcuda-memory"
Json = dict[str, Any]


def number(text: Any) -> int:
    """Return a quantity as an integer, rounded up."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(m|k|Ki|M|Mi|)", str(text))
    assert match, text
    scale = {"m": 0.001, "": 1, "k": 1000, "Ki": 1024, "M": 10**6, "Mi": 2**20}[match[2]]
    return math.ceil(float(match[1]) * scale)


def limit(container: Json, name: str) -> int:
    return number(container.get("resources", {}).get("limits", {}).get(name, "0"))


def needs(core: int, memory: int) -> bool:
    return not (core == 0 or (core < 100 and memory == 0))


def is_counted(pod: Json, node: str) -> bool:
    """Return True if the pod counts on the node."""
    bound = pod["spec"].get("nodeName", "")
    meant = "" if bound else pod["metadata"].get("annotations", {}).get("tencent.com/predicate-node", "")
    return node in (bound, meant) and pod["status"]["phase"] not in ("Succeeded", "Failed")


class Devices:
    """One node's GPUs: a list of [index, core left, memory left]."""

    def __init__(self, node: Json, pods: list[Json]) -> None:
        capacity = node["status"]["capacity"]
        self.total = number(capacity[MEMORY])
        self.n = number(capacity[CORE]) // 100
        self.each = self.total // self.n
        self.left = [[index, 100, self.each] for index in range(self.n)]
        self.core_used = self.memory_used = 0
        for pod in pods:
            if is_counted(pod, node["metadata"]["name"]):
                self.replay(pod)

    def replay(self, pod: Json) -> None:
        for place, container in enumerate(pod["spec"]["containers"]):
            text = pod["metadata"].get("annotations", {}).get(f"tencent.com/predicate-gpu-idx-{place}")
            if text is None or not all(re.fullmatch(r"[+-]?[0-9]+", word) for word in text.split(",")):
                continue
            for index in map(int, text.split(",")):
                if index < self.n:
                    core = limit(container, CORE)
                    self.use(index, min(core, 100), self.each if core >= 100 else limit(container, MEMORY))

    def use(self, index: int, core: int, memory: int) -> bool:
        entry = self.left[index]
        if entry[1] < core or entry[2] < memory:
            return False
        entry[1] -= core
        entry[2] -= memory
        self.core_used += core
        self.memory_used += memory
        return True

    def rank(self, name: str) -> tuple[int, int, str]:
        return self.n * 100 - self.core_used, self.total - self.memory_used, name

    def serve(self, container: Json) -> list[int] | None:
        core, memory = limit(container, CORE), limit(container, MEMORY)
        entries = sorted(copy.deepcopy(self.left), key=lambda entry: (entry[1], entry[2], entry[0]))
        if core < 100:
            for index, core_left, memory_left in entries:
                if core_left >= core and memory_left >= memory:
                    self.use(index, core, memory)
                    return [int(index)]
            return None
        free = [int(entry[0]) for entry in entries if entry[1] == 100][: core // 100]
        if len(free) < core // 100:
            return None
        for index in free:
            if not self.use(index, 100, self.each):
                return None
        return free


def answer(pod: Json, nodes: list[Json], pods: list[Json], *, strict: bool) -> Json:
    """Return {"names": …, "failed": …, "error": …, "annotations": …} for a filter request."""
    containers = pod["spec"]["containers"]
    if not needs(sum(limit(item, CORE) for item in containers), sum(limit(item, MEMORY) for item in containers)):
        return {"names": [node["metadata"]["name"] for node in nodes], "failed": None, "error": "", "annotations": {}}
    marks = ("tencent.com/gpu-assigned", "tencent.com/predicate-time", "tencent.com/predicate-gpu-idx-")
    if strict and any(mark in name for name in pod["metadata"].get("annotations", {}) for mark in marks):
        name = pod["metadata"]["name"]
        return {"names": None, "failed": None, "error": f"pod {name} had been predicated!", "annotations": {}}
    uid = pod["metadata"]["uid"]
    failed, able = {}, []
    others = [item for item in pods if item["metadata"]["uid"] != uid]
    for node in nodes:
        if number(node["status"].get("capacity", {}).get(CORE, "0")) == 0:
            failed[node["metadata"]["name"]] = "no GPU device"
        else:
            able.append((node["metadata"]["name"], Devices(node, others)))
    won, annotations = None, {}
    for name, devices in sorted(able, key=lambda pair: pair[1].rank(pair[0])):
        if won is not None:
            failed[name] = f"pod {uid} has already been matched to another node"
            continue
        wanting = [(i, item) for i, item in enumerate(containers) if needs(limit(item, CORE), limit(item, MEMORY))]
        served = {}
        for place, container in wanting:
            got = devices.serve(container)
            if got is None:
                break
            served[f"tencent.com/predicate-gpu-idx-{place}"] = ",".join(map(str, got))
        if len(served) < len(wanting):
            failed[name] = f"pod {uid} does not match with this node"
        else:
            won = name
            annotations = {**served, "tencent.com/predicate-node": name, "tencent.com/gpu-assigned": "false"}
    return {"names": [won] if won else [], "failed": failed, "error": "", "annotations": annotations}
