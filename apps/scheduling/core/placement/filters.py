"""Filters: the GPUs that can carry a request, and the reasons that remove the others.

Filters run in the order of `FILTERS`, and a GPU counts for the first that removes it. The label rules:

- affinity: claims of one label share a GPU. While a GPU carries the label, others do not fit; else any does.
- anti-affinity: claims of one label never share a GPU.
- exclusion: a GPU carries claims of one exclusion label only, or only claims without any.

Labels are the tenant's own: the same word of another tenant is another label. So an affinity or anti-affinity label
neither meets nor shows anything of others. An exclusion label does keep others off its GPUs, by its nature; all that
they learn is the number of these GPUs, not whose they are.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum

from apps.scheduling.core.values import CORDONED, MIG_MODE, GpuState, Label, NodeState, Reason, Request

SINGULAR = {"have": "has", "are": "is", "carry": "carries"}
NOTHING = (0, 0)
# The reason of GPUs that would be schedulable if they were healthy.
UNHEALTHY = "gpu-unhealthy"
GPU_CORDONED = "gpu-cordoned"
GPU_IN_MIG_MODE = "gpu-in-mig-mode"


class Filter(IntEnum):
    """The filters in their order; `NONE` is a GPU that fits."""

    NONE = 0
    NODE_UNAVAILABLE = 1
    NODE_SELECTOR = 2
    GPU_MODEL = 3
    GPU_MEMORY = 4
    GPU_CORE = 5
    NODE_CPU = 6
    NODE_RAM = 7
    RESERVED = 8
    AFFINITY = 9
    ANTI_AFFINITY = 10
    EXCLUSION = 11
    GPUS_ON_ONE_NODE = 12

    @property
    def code(self) -> str:
        """The filter's code in refusals."""
        return self.name.lower().replace("_", "-")


def removed_by(
    gpu: GpuState, node: NodeState, request: Request, held: Mapping[str, tuple[int, int]], *, bound: bool, whole: int
) -> Filter:
    """Return the first filter that removes the GPU. `bound`: some GPU carries the request's affinity label."""
    if not gpu.schedulable:
        return Filter.NODE_UNAVAILABLE
    if not set(request.node_selector) <= set(node.labels):
        return Filter.NODE_SELECTOR
    if request.models and gpu.model not in request.models:
        return Filter.GPU_MODEL
    if short := _short_of(gpu, node, request):
        return short
    core, memory = held.get(gpu.uuid, NOTHING)
    if gpu.core_free - core < request.core_request or gpu.memory_free_mib - memory < request.memory_mib:
        return Filter.RESERVED
    return _kept_off(gpu, request, bound=bound, whole=whole)


def _short_of(gpu: GpuState, node: NodeState, request: Request) -> Filter:
    if gpu.memory_free_mib < request.memory_mib:
        return Filter.GPU_MEMORY
    if gpu.core_free < request.core_request:
        return Filter.GPU_CORE
    if node.cpu_milli_free is not None and node.cpu_milli_free < request.cpu_milli:
        return Filter.NODE_CPU
    if node.ram_mib_free is not None and node.ram_mib_free < request.ram_mib:
        return Filter.NODE_RAM
    return Filter.NONE


def _kept_off(gpu: GpuState, request: Request, *, bound: bool, whole: int) -> Filter:
    labels = gpu.labels
    if bound and Label("affinity", request.tenant, request.affinity or "") not in labels:
        return Filter.AFFINITY
    if request.anti_affinity is not None and Label("anti-affinity", request.tenant, request.anti_affinity) in labels:
        return Filter.ANTI_AFFINITY
    exclusions = {label for label in labels if label.kind == "exclusion"}
    if request.exclusion is None:
        return Filter.EXCLUSION if exclusions else Filter.NONE
    alone = {Label("exclusion", request.tenant, request.exclusion)}
    return Filter.NONE if exclusions == alone or not in_use(gpu, whole) else Filter.EXCLUSION


def in_use(gpu: GpuState, whole: int) -> bool:
    """Return True if the GPU carries anything."""
    return gpu.core_free < whole or gpu.memory_free_mib < gpu.memory_mib


def reasons(
    request: Request, removed: Sequence[int], most_on_one_node: int, sick: Sequence[str] = ()
) -> tuple[Reason, ...]:
    """Return the reasons of a refusal.

    `removed` counts GPUs by filter; those under `NONE` fit, but too few on one node.

    `sick` are the problems of GPUs that are unschedulable for that alone: they count under `NODE_UNAVAILABLE`.
    """
    if not sum(removed):
        return (Reason("no-gpus", 0, "The pool has no GPUs"),)
    ill = [problem for problem in sick if problem not in (CORDONED, MIG_MODE)]
    cordoned, divided = sick.count(CORDONED), sick.count(MIG_MODE)
    told = [Reason(UNHEALTHY, len(ill), as_sentence(len(ill), f"are unhealthy ({_ailments(ill)})"))] if ill else []
    if cordoned:
        told.append(Reason(GPU_CORDONED, cordoned, as_sentence(cordoned, "are cordoned")))
    if divided:
        detail = as_sentence(divided, "are in MIG mode, for claims with isolation hard only")
        told.append(Reason(GPU_IN_MIG_MODE, divided, detail))
    told += [
        Reason(kind.code, count, as_sentence(count, _words(kind, request)))
        for kind in Filter
        if kind is not Filter.NONE
        and kind < len(removed)
        and (count := removed[kind] - (len(sick) if kind is Filter.NODE_UNAVAILABLE else 0))
    ]
    if removed[Filter.NONE]:
        detail = (
            f"{request.gpu_count} GPUs of one node are requested; the most that fit on one node are {most_on_one_node}"
        )
        told.append(Reason(Filter.GPUS_ON_ONE_NODE.code, removed[Filter.NONE], detail))
    return tuple(told)


def _words(kind: Filter, request: Request) -> str:
    wanted = ", ".join(f"{key}={value}" for key, value in request.node_selector)
    words = {
        Filter.NODE_UNAVAILABLE: "unavailable (node cordoned or NotReady)",
        Filter.NODE_SELECTOR: f"are on a node without the labels {wanted}",
        Filter.GPU_MODEL: f"are not of model {' or '.join(request.models)}",
        Filter.GPU_MEMORY: f"have less than {request.memory_mib} MiB free",
        Filter.GPU_CORE: f"have less than {request.core_request} % core free",
        Filter.NODE_CPU: f"are on a node with less than {request.cpu_milli} thousandths of a CPU free",
        Filter.NODE_RAM: f"are on a node with less than {request.ram_mib} MiB of RAM free",
        Filter.RESERVED: "are reserved",
        Filter.AFFINITY: f"carry no claim with the affinity label {request.affinity}, and another does",
        Filter.ANTI_AFFINITY: f"carry a claim with the anti-affinity label {request.anti_affinity}",
        Filter.EXCLUSION: "carry claims that exclude this one, or that it excludes",
    }
    return words[kind]


def _ailments(sick: Sequence[str]) -> str:
    """Return the problems as in `XID 79`; several as in `2 × XID 79, 1 × RemapPending`."""
    counted = sorted(Counter(sick).items(), key=lambda item: (-item[1], item[0]))
    if len(counted) == 1:
        return counted[0][0]
    return ", ".join(f"{count} × {words}" for words, count in counted)


def as_sentence(gpus: int, words: str) -> str:
    """Return the sentence with the right verb: several GPUs *have* less, one GPU *has* less."""
    if gpus > 1:
        return f"{gpus} GPUs {words}"
    verb, _, rest = words.partition(" ")
    return f"1 GPU {SINGULAR.get(verb, verb)} {rest}"
