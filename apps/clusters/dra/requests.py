"""ResourceClaims as the API server returns them: what they ask, what was allocated, and how they are resized. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent.wire import DRA_DRIVER as DRIVER
from apps.clusters.core import quantities
from apps.clusters.core.devices import DEVICE_CLASS, is_ours, profile_of_class
from apps.clusters.formats.asks import Unreadable

Thing = Mapping[str, Any]

# NVIDIA's driver, whose attributes people's manifests name.
OTHERS_DRIVER = "gpu.nvidia.com"
# The capacities of a device: percent of its compute, bytes of its memory.
CORE, MEMORY = "core", "memory"
# Annotations of a ResourceClaim that resize it: percent, and a quantity of bytes.
CORE_KEY, CORE_LIMIT_KEY, MEMORY_KEY = "gpucloud.io/core", "gpucloud.io/core-limit", "gpucloud.io/memory"
KEYS = (CORE_KEY, CORE_LIMIT_KEY, MEMORY_KEY)
# Longest annotation that is read.
LONGEST = 100
WHOLE, MOST_DEVICES, MIB = 100, 32, 1 << 20
MOST_MIB = 2**31 - 1
# The attribute `type` of a device that is a place of a MIG instance.
MIG_TYPE = "mig"
_INSTANCE = re.compile(r"(?P<gpu>.+)-mig-(?P<compute>\d{1,2}g)-(?P<memory>\d{1,5}gb)-(?P<start>\d{1,2})")


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """The request of a ResourceClaim for shares of GPUs, the same of each, or for one MIG instance.

    An instance has the core and memory of its profile; those here are 0 then.
    """

    name: str
    count: int
    core: int
    memory_mib: int
    profile: str | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """One allocated device: a share of one GPU, or a MIG instance at a place of one."""

    pool: str
    name: str
    request: str
    share_id: str
    core: int
    memory_mib: int
    profile: str | None = None
    start: int | None = None

    @property
    def node(self) -> str:
        """The node's name in Kubernetes: its pool, or the first part of it."""
        return self.pool.partition("/")[0]

    @property
    def gpu(self) -> str:
        """The name of the GPU's device."""
        found = _INSTANCE.fullmatch(self.name) if self.profile is not None else None
        return found["gpu"] if found else self.name

    @property
    def facts(self) -> dict[str, Any]:
        """The device as its claim has it: for the node's agent (`agent.wire.ResourceClaim`), and what was allocated."""
        names = {"pool": self.pool, "device": self.name, "request": self.request, "share_id": self.share_id}
        if self.profile is not None:
            return {**names, "profile": self.profile, "start": self.start}
        return {**names, "core": self.core, "memory_mib": self.memory_mib}


def name_device(gpu_uuid: str) -> str:
    """Return the name of a GPU's device: its UUID as a DNS label."""
    return gpu_uuid.lower()


def name_instance(gpu_uuid: str, profile: str, start: int) -> str:
    """Return the name of the device that is a place of an instance: a DNS label of at most 63 characters."""
    return f"{name_device(gpu_uuid)}-mig-{profile.replace('.', '-')}-{start}"


def asks(claim: Thing) -> bool:
    """Return True if the ResourceClaim (or the spec of a template) asks for our devices."""
    return any(is_ours(str(one.get("deviceClassName"))) for one in _every_request(_requests(claim)))


def read_request(claim: Thing) -> DeviceRequest:
    """Return what the ResourceClaim asks. Raises Unreadable."""
    requests = _requests(claim)
    mine = [one for one in requests if any(is_ours(str(it.get("deviceClassName"))) for it in _every_request([one]))]
    if len(mine) != 1:
        raise Unreadable(
            f"A ResourceClaim has one request of {DEVICE_CLASS} or of one MIG profile, this one has {len(mine)}: set "
            "its count for several GPUs, and write another ResourceClaim for a share of another size, or for another "
            "instance."
        )
    [one] = mine
    name, exactly = str(one.get("name")), one.get("exactly")
    if not isinstance(exactly, Mapping):
        raise Unreadable(
            f"Request {name}: firstAvailable has several sizes, and a claim is charged for one: use exactly."
        )
    if exactly.get("adminAccess"):
        raise Unreadable(f"Request {name}: it can have no adminAccess: operators see each GPU in gpucloud.")
    if exactly.get("allocationMode") not in (None, "ExactCount"):
        raise Unreadable(f"Request {name}: a claim is charged for a number of GPUs: set allocationMode to ExactCount.")
    count = exactly.get("count") or 1
    if not isinstance(count, int) or not 1 <= count <= MOST_DEVICES:
        raise Unreadable(f"Request {name}: count is {count}: give a number from 1 to {MOST_DEVICES}.")
    _refuse_others_words(claim, name, exactly)
    amounts = (exactly.get("capacity") or {}).get("requests") or {}
    if (profile := profile_of_class(str(exactly["deviceClassName"]))) is not None:
        return _read_instance(name, profile, count, amounts)
    if strange := sorted(set(amounts) - {CORE, MEMORY}):
        raise Unreadable(f"Request {name}: a GPU has no capacity {strange[0]}, only {CORE} and {MEMORY}.")
    if MEMORY not in amounts:
        raise Unreadable(
            f"Request {name}: say how much memory it gets: capacity.requests.{MEMORY}, e.g. 2Gi. "
            f"{CORE} is the percent of the GPU's compute; without it, {WHOLE}."
        )
    return DeviceRequest(name, count, read_core(amounts.get(CORE, WHOLE), name), read_memory(amounts[MEMORY], name))


def _needs_others_devices(expression: str) -> bool:
    """Return True if the CEL expression reads what no device of ours has, or demands the other driver."""
    text = "".join(expression.split()).replace("'", '"')
    reads = (f'.attributes["{OTHERS_DRIVER}"]', f'.capacity["{OTHERS_DRIVER}"]', f'.driver=="{OTHERS_DRIVER}"')
    return DRIVER not in text and any(one in text for one in reads)


def _refuse_others_words(claim: Thing, name: str, exactly: Thing) -> None:
    """Refuse what only devices of NVIDIA's driver have: none of ours would be allocated. Raises Unreadable."""
    selectors = (str((one.get("cel") or {}).get("expression")) for one in exactly.get("selectors") or ())
    if any(_needs_others_devices(one) for one in selectors):
        raise Unreadable(
            f"Request {name}: its selector names {OTHERS_DRIVER}, and this class has devices of {DRIVER}: name that "
            "driver and its attributes (docs/dra.md), or leave the selector out where the class has the profile."
        )
    for one in _devices(claim).get("constraints") or ():
        attribute = str(one.get("matchAttribute") or one.get("distinctAttribute"))
        if attribute.startswith(f"{OTHERS_DRIVER}/") and name in (one.get("requests") or [name]):
            raise Unreadable(
                f"Request {name}: a constraint names {attribute}, which no device of {DRIVER} has: leave it out."
            )


def _read_instance(name: str, profile: str, count: int, amounts: Thing) -> DeviceRequest:
    if count != 1:
        raise Unreadable(
            f"Request {name}: count is {count}, and a program uses one MIG instance: write a ResourceClaim for each."
        )
    if amounts:
        raise Unreadable(f"Request {name}: an instance has what its profile {profile} has: leave capacity out.")
    return DeviceRequest(name, 1, 0, 0, profile)


def read_core(said: Any, where: str) -> int:
    """Return percent. Raises Unreadable."""
    core = _number(said, f"{where}: {CORE}")
    if not 1 <= core <= WHOLE:
        raise Unreadable(f"{where}: {CORE} is {said}: give the percent of one GPU, from 1 to {WHOLE}.")
    return core


def read_memory(said: Any, where: str) -> int:
    """Return MiB, rounded up, as kube-scheduler rounds to the step of the capacity. Raises Unreadable."""
    memory_mib = -(-_number(said, f"{where}: {MEMORY}") // MIB)
    if not 1 <= memory_mib <= MOST_MIB:
        raise Unreadable(f"{where}: {MEMORY} is {said}: give bytes, at least 1Mi, e.g. 2Gi.")
    return memory_mib


def read_allocation(claim: Thing) -> tuple[Device, ...]:
    """Return our devices that are allocated to the ResourceClaim, none before that. Raises Unreadable."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or []
    return tuple(_device(one) for one in results if one.get("driver") == DRIVER and not one.get("adminAccess"))


def read_resize(annotations: Mapping[str, str]) -> dict[str, int]:
    """Return the changed fields of the claim that its annotations ask. Raises Unreadable."""
    values: dict[str, int] = {}
    if CORE_KEY in annotations:
        values["core_request"] = read_core(annotations[CORE_KEY], "Annotation")
    if CORE_LIMIT_KEY in annotations:
        values["core_limit"] = read_core(annotations[CORE_LIMIT_KEY], "Annotation")
    if MEMORY_KEY in annotations:
        values["memory_mib"] = read_memory(annotations[MEMORY_KEY], "Annotation")
    return values


def resize_words(claim: Thing) -> dict[str, str]:
    """Return the annotations that resize."""
    found = (claim.get("metadata") or {}).get("annotations") or {}
    return {key: str(found[key])[:LONGEST] for key in KEYS if key in found}


def users(claim: Thing) -> list[tuple[str, str]]:
    """Return name and uid of the pods that the ResourceClaim is reserved for."""
    reserved = (claim.get("status") or {}).get("reservedFor") or []
    return [(str(one.get("name")), str(one.get("uid"))) for one in reserved if one.get("resource") == "pods"]


def _device(result: Thing) -> Device:
    consumed = result.get("consumedCapacity") or {}
    name = str(result.get("device"))
    if (place := _INSTANCE.fullmatch(name)) is not None:
        profile = f"{place['compute']}.{place['memory']}"
        pool, request = str(result.get("pool")), str(result.get("request"))
        return Device(pool, name, request, "", 0, 0, profile=profile, start=int(place["start"]))
    if MEMORY not in consumed or CORE not in consumed:
        raise Unreadable(
            f"Device {name} was allocated without consumedCapacity: turn on the feature gate DRAConsumableCapacity of "
            "kube-apiserver and kube-scheduler (it is on from Kubernetes 1.36)."
        )
    return Device(
        pool=str(result.get("pool")),
        name=name,
        request=str(result.get("request")),
        share_id=str(result.get("shareID") or ""),
        core=read_core(consumed[CORE], name),
        memory_mib=read_memory(consumed[MEMORY], name),
    )


def _requests(claim: Thing) -> list[Thing]:
    return list(_devices(claim).get("requests") or [])


def _devices(claim: Thing) -> Thing:
    spec = claim.get("spec") or {}
    # A template has the ResourceClaim's spec within its own.
    return dict((spec.get("spec") or spec).get("devices") or {})


def _every_request(requests: Iterable[Thing]) -> Iterator[Thing]:
    """Yield each request's alternatives, or what it asks exactly."""
    for one in requests:
        yield from one.get("firstAvailable") or ()
        yield one.get("exactly") or {}


def _number(said: Any, where: str) -> int:
    try:
        return quantities.value(str(said))
    except quantities.NotAQuantity:
        raise Unreadable(f"{where}: {str(said)[:LONGEST]!r} is not a quantity.") from None
