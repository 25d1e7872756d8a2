"""The instances of a GPU in MIG mode, for its page."""

from collections.abc import Iterable
from typing import Any

from apps.nodes.models import Gpu
from apps.quotas.models.pool import MigInstances
from apps.scheduling.core.mig import core_percent
from apps.scheduling.models import Assignment
from apps.scheduling.services.fleet.devices import mig_state, slices_used


def mig_of(gpu: Gpu, live: Iterable[Assignment]) -> dict[str, Any] | None:
    """Return the GPU's instances by slice, with their claims, and its profiles with the room left for each.

    None: it is not in MIG mode.
    """
    static = gpu.node.pool.mig == MigInstances.STATIC
    used = slices_used([gpu.pk]).get(gpu.pk, 0)
    mig = mig_state(gpu.mig, used, ready=True, static=static)
    if mig is None or gpu.mig is None:
        return None
    live = list(live)
    instances = [
        {
            "start": item.mig_start,
            "slices": _slices(item.mig_start, item.mig_size or 0),
            "profile": item.claim.profile,
            "claims": [item.claim, *(one.claim for one in live if one.claim.instance_of == item.claim.uid)],
        }
        for item in live
        if item.mig_start is not None
    ]
    instances += [
        {"start": one["start"], "slices": _slices(one["start"], one["size"]), "profile": one["profile"], "claims": []}
        for one in gpu.mig["foreign"]
        # A static instance with a claim is listed with that.
        if not any(one["start"] == of_claim["start"] for of_claim in instances)
    ]
    profiles = [
        {
            "name": profile.name,
            "core": core_percent(profile, mig.profiles),
            "memory_mib": profile.memory_mib,
            "free": mig.room(profile),
        }
        for profile in sorted(mig.profiles, key=lambda one: (one.memory_mib, one.compute, one.name))
    ]
    return {"static": static, "instances": sorted(instances, key=lambda one: one["start"]), "profiles": profiles}


def _slices(start: int, size: int) -> str:
    return f"{start}–{start + size - 1}" if size > 1 else str(start)
