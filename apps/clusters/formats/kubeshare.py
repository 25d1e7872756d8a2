"""Format of KubeShare: fractions of a GPU in annotations or labels, which Kubernetes does not count.

v1 (and its predecessor with the prefix `gemini/`): annotations of a SharePod, `gpu_request` and `gpu_limit` from 0 to
1.0, `gpu_mem` in bytes, `GPUID`, and three labels for placement. v2: labels of a pod, which may also ask for whole GPUs
(a whole number, request equal to limit); without `gpu_mem` memory follows the request.
"""

from collections.abc import Iterator, Mapping
from decimal import ROUND_FLOOR, ROUND_HALF_UP, Decimal, InvalidOperation

from apps.clusters.formats import pods
from apps.clusters.formats.asks import WHOLE, Ask, Share, Unreadable
from apps.clusters.formats.guarded import Guarded
from apps.clusters.formats.wishes import EXACT, MOST_IN_GANG, Gang, Selection, Wishes

NAME = "KubeShare"
V1_PREFIX = "kubeshare/"
SLIDES_PREFIX = "gemini/"
V2_PREFIX = "sharedgpu/"
PREFIXES = (V1_PREFIX, SLIDES_PREFIX, V2_PREFIX)
RESOURCES: tuple[str, ...] = ()
QUOTAS: tuple[str, ...] = ()
SHARES = ("gpu_request", "gpu_limit", "gpu_mem")
GROUP = ("group_name", "group_headcount", "group_threshold")
# The minimum of a group in the manifests of earlier releases.
MINIMUM = "min_available"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
# v1 holds a GPU with an idle pod that has this label.
PLACEHOLDER = f"{V1_PREFIX}role"
GUARDED = Guarded(
    # Version 2 asks in labels; in annotations its scheduler writes the GPU, and the memory that it filled in.
    annotations=(*(f"{prefix}gpu_uuid" for prefix in PREFIXES), f"{V2_PREFIX}gpu_mem"),
    labels=(PLACEHOLDER,),
    environment=(VISIBLE,),
    asking=PREFIXES,
)
WRITERS = ("kubeshare-scheduler", "kubeshare-device-manager")
SCHEDULERS = ("kubeshare-scheduler",)
# Kubernetes counts nothing of it and no kubelet checks it: a pod's words alone are no use of a GPU.
IMPORTED_ONLY = True
MIB = 1 << 20
MOST_GPUS = 1024
MOST_PRIORITY = 100
LONGEST_LABEL = 63


def prefix_of(pod: pods.Pod) -> str | None:
    """Return the prefix of the version that the pod uses, or None. Raises Unreadable if it mixes versions."""
    used = {prefix for prefix in PREFIXES if _uses(pod, prefix)}
    if len(used) > 1:
        raise Unreadable(f"{pods.name_of(pod)} uses {' and '.join(sorted(used))}: use the words of one version.")
    return used.pop() if used else None


def asks(pod: pods.Pod) -> tuple[Ask, ...]:
    """Return the request of the pod or SharePod: none or one. Raises Unreadable."""
    prefix = prefix_of(pod)
    if prefix is None:
        return ()
    said = _words(pod, prefix)
    where = pods.name_of(pod)
    limit = _fraction(said, prefix, "gpu_limit", where)
    request = _fraction(said, prefix, "gpu_request", where, missing=Decimal(0) if prefix == V2_PREFIX else None)
    if limit == 0 and request == 0:
        return ()
    if request > limit:
        raise Unreadable(f"{where}: {prefix}gpu_request {request} is more than {prefix}gpu_limit {limit}.")
    if limit > 1:
        return (_whole(said, prefix, request, limit, where),)
    memory = _memory(said, prefix, where)
    if not memory and request == 0:
        raise Unreadable(f"{where}: neither {prefix}gpu_request nor {prefix}gpu_mem: it would have no memory.")
    return (
        Ask(
            "",
            1,
            _percent(request),
            _percent(limit),
            memory_mib=memory or None,
            # v2: the fraction of the GPU is also the fraction of its memory.
            memory_percent=None if memory else int((request * WHOLE).to_integral_value(ROUND_FLOOR)),
            gpu_model=said.get("gpu_model") or None,
            affinity=_label(said, f"{prefix}sched_affinity", where),
            anti_affinity=_label(said, f"{prefix}sched_anti-affinity", where),
            exclusion=_label(said, f"{prefix}sched_exclusion", where),
            priority=_priority(said, prefix, where),
        ),
    )


def holds(pod: pods.Pod, *, gpu_uuid: str = "") -> tuple[Share, ...]:
    """Return the shares of a KubeShare pod on `gpu_uuid` (a SharePod's BoundDeviceID) or the GPU that the pod names."""
    found = asks(pod)
    if not found:
        return ()
    prefix = prefix_of(pod) or ""
    text = gpu_uuid or pods.annotations(pod).get(f"{prefix}gpu_uuid") or _visible_devices(pod)
    uuids = [word for word in text.split(",") if word]
    if len(set(uuids)) != found[0].gpu_count:
        raise Unreadable(
            f"{pods.name_of(pod)}: it asks {found[0].gpu_count} GPU(s) and names "
            f"{', '.join(uuids) or 'none'} (in {prefix}gpu_uuid or {VISIBLE})."
        )
    memory = found[0].memory_mib
    # v2 writes the default that it filled in as an annotation.
    if memory is None and prefix == V2_PREFIX and (filled := pods.annotations(pod).get(f"{prefix}gpu_mem")):
        memory = _bytes(filled, f"{pods.name_of(pod)}, {prefix}gpu_mem") // MIB // len(uuids)
    return tuple(Share("", found[0].core_request, found[0].core_limit, memory, gpu_uuid=uuid) for uuid in uuids)


def annotations_for(ask: Ask, *, prefix: str) -> dict[str, str]:
    """Return the annotations (v2: labels) of this request."""
    many = ask.gpu_count > 1
    said = {
        "gpu_request": _text(ask.gpu_count * WHOLE if many else ask.core_request),
        "gpu_limit": _text(ask.gpu_count * WHOLE if many else ask.core_limit),
        "gpu_mem": str(ask.memory_mib * MIB) if ask.memory_mib is not None else "",
        "gpu_model": ask.gpu_model or "",
        "GPUID": "",
        "sched_affinity": ask.affinity or "",
        "sched_anti-affinity": ask.anti_affinity or "",
        "sched_exclusion": ask.exclusion or "",
        "priority": str(ask.priority) if ask.priority else "",
    }
    return {f"{prefix}{word}": value for word, value in said.items() if value}


def wishes(pod: pods.Pod) -> Wishes:
    """Return what the labels of version 2 ask beside the share."""
    if prefix_of(pod) != V2_PREFIX:
        return Wishes()
    said = {word: value for word, value in _words(pod, V2_PREFIX).items() if value}
    model = said.get("gpu_model")
    gang = _gang(said)
    unmet = tuple(_unmet(said, gang))
    wanted = gang if gang is not None and 1 < gang.minimum <= MOST_IN_GANG else None
    return Wishes(Selection((f"{EXACT}{model}",)) if model else Selection(), wanted, unmet)


def _gang(said: Mapping[str, str]) -> Gang | None:
    """Return the pod's group: so much of its headcount as the threshold says, rounded to the nearest."""
    name, headcount, threshold = (said.get(word, "") for word in GROUP)
    headcount, threshold = (said[MINIMUM], "1") if MINIMUM in said else (headcount, threshold)
    try:
        least = (Decimal(threshold) * Decimal(headcount)).to_integral_value(ROUND_HALF_UP)
    except (InvalidOperation, OverflowError):
        return None
    return Gang(name, int(least)) if name and least.is_finite() and 0 <= least <= pods.MOST else None


def _unmet(said: Mapping[str, str], gang: Gang | None) -> Iterator[str]:
    for word in sorted(said):
        if word == "priority" and said[word] not in ("0", "-1"):
            yield f"{V2_PREFIX}priority is not followed: give the pod a PriorityClass."
        elif word in (*GROUP, MINIMUM) and gang is None:
            yield f"{V2_PREFIX}{word} is not followed: a group has a name, a headcount and a threshold."
        elif word == GROUP[0] and gang is not None and gang.minimum > MOST_IN_GANG:
            yield f"{V2_PREFIX}{word} is not followed: at most {MOST_IN_GANG} pods are placed together."
        elif word not in (*SHARES, *GROUP, MINIMUM, "gpu_model", "priority"):
            yield f"{V2_PREFIX}{word} is not followed: it is not known here."


def gpu_id(pod: pods.Pod) -> str:
    """Return the GPUID of a SharePod: SharePods with the same id share one GPU. Empty: none. Raises Unreadable."""
    prefix = prefix_of(pod)
    return _label(_words(pod, prefix), f"{prefix}GPUID", pods.name_of(pod)) or "" if prefix else ""


def _words(pod: pods.Pod, prefix: str) -> Mapping[str, str]:
    said = pods.labels(pod) if prefix == V2_PREFIX else pods.annotations(pod)
    return {key.removeprefix(prefix): str(value).strip() for key, value in said.items() if key.startswith(prefix)}


def _uses(pod: pods.Pod, prefix: str) -> bool:
    words = _words(pod, prefix)
    return any(words.get(word) for word in SHARES)


def _fraction(said: Mapping[str, str], prefix: str, word: str, where: str, missing: Decimal | None = None) -> Decimal:
    text = said.get(word, "")
    if not text and missing is not None:
        return missing
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal(-1)
    most = MOST_GPUS if prefix == V2_PREFIX else 1
    if not (number.is_finite() and 0 <= number <= most):
        upto = "1.0, or a whole number of GPUs" if prefix == V2_PREFIX else "1.0"
        raise Unreadable(f"{where}: {prefix}{word} is {text[:32]!r}: give a fraction of a GPU from 0 to {upto}.")
    return number


def _whole(said: Mapping[str, str], prefix: str, request: Decimal, limit: Decimal, where: str) -> Ask:
    if request != limit or limit != limit.to_integral_value():
        raise Unreadable(
            f"{where}: {prefix}gpu_request {request} and {prefix}gpu_limit {limit}: "
            "more than one GPU is asked in whole numbers, both the same."
        )
    return Ask(
        "",
        int(limit),
        WHOLE,
        WHOLE,
        memory_percent=WHOLE,
        gpu_model=said.get("gpu_model") or None,
        priority=_priority(said, prefix, where),
    )


def _memory(said: Mapping[str, str], prefix: str, where: str) -> int:
    """Return MiB, rounded up; 0 if not named, which only v2 allows."""
    text = said.get("gpu_mem", "")
    if not text and prefix == V2_PREFIX:
        return 0
    memory = _bytes(text, f"{where}, {prefix}gpu_mem")
    if memory == 0 and prefix != V2_PREFIX:
        raise Unreadable(f"{where}: {prefix}gpu_mem is 0: a share without memory can run nothing; give bytes.")
    return -(-memory // MIB)


def _bytes(text: str, where: str) -> int:
    return pods.whole_text(text, where, most=pods.MOST * MIB)


def _label(said: Mapping[str, str], key: str, where: str) -> str | None:
    label = said.get(key.partition("/")[2], "")
    if len(label) > LONGEST_LABEL:
        raise Unreadable(f"{where}: {key} has more than {LONGEST_LABEL} characters.")
    return label or None


def _priority(said: Mapping[str, str], prefix: str, where: str) -> int:
    text = said.get("priority", "")
    if not text or prefix != V2_PREFIX:
        return 0
    priority = 0 if text == "-1" else pods.whole_text(text, f"{where}, {prefix}priority")
    if priority > MOST_PRIORITY:
        raise Unreadable(f"{where}: {prefix}priority is {priority}: give 0 to {MOST_PRIORITY}.")
    return priority


def _percent(fraction: Decimal) -> int:
    """Round to the nearest percent, but never to 0 for a positive fraction."""
    nearest = int((fraction * WHOLE).to_integral_value(ROUND_HALF_UP))
    return nearest or int(fraction > 0)


def _text(percent: int) -> str:
    return str(Decimal(percent) / WHOLE)


def _visible_devices(pod: pods.Pod) -> str:
    return next((found for item in pods.containers(pod) if (found := pods.environment(item).get(VISIBLE))), "")
