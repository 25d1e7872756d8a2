"""Claims with hard isolation: each has a MIG instance of its own, and the core and memory of its profile.

The profile is settled when the claim is made, from the GPUs in MIG mode that its pool has then: the one that is named,
or the smallest that has the core and memory that are asked for. A profile of one name has the same size on every GPU of
a kind; where two kinds differ by a few MiB, the claim has the lesser amount.

A claim may open its instance: then its own programs have a part of it, and claims of its tenant that name it have the
rest, each a share with a limit and turns.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from apps.nodes.models import Gpu
from apps.quotas.models import Pool, Tenant
from apps.quotas.models.pool import MigInstances
from apps.scheduling.core.mig import core_percent
from apps.scheduling.models import Claim, ClaimState
from apps.scheduling.models.choices import Isolation
from apps.scheduling.models.claim import RESOURCE_CLAIM
from apps.scheduling.services.fleet.devices import mig_state
from gpucloud.errors import Conflict, Invalid

# What each of these would mean for an instance is not built; the words say what to do instead.
REFUSED: dict[str, str] = {
    "core_limit": "An instance has the core of its profile and nothing else: leave core_limit out.",
    "best_effort": "An instance is nobody's idle core: leave class out, or ask for isolation shared.",
    "movable": "An instance cannot be moved while programs run in it: leave movable out.",
    "schedule": "An instance cannot be suspended: leave schedule out, and release the claim when it need not run.",
    "affinity": "An instance is shared with no other claim: leave affinity out.",
    "anti_affinity": "An instance is shared with no other claim: leave anti_affinity out.",
    "exclusion": "An instance is shared with no other claim: leave exclusion out.",
    "group": "Claims of a group have no instances: make single claims.",
    "reservation": "Reservations hold shares of whole GPUs: make the claim outside of the reservation.",
    "pod": "Pods get shares of whole GPUs only: ask for an instance by a ResourceClaim (docs/dra.md).",
}


class NotWithHardIsolation(Invalid, code="not-with-hard-isolation", title="Not with hard isolation"):
    """A field that a claim with a MIG instance cannot have."""


OWN_PART = ("own_core", "own_memory_mib")
# What can be changed of a claim that has an instance, while it runs.
LIVE_IN_INSTANCE = ("weight", "remote", *OWN_PART)
# Of a claim in the instance of another: these as well, and further ones.
INSIDE_TOO = {name: words for name, words in REFUSED.items() if name != "core_limit"}
REFUSED_INSIDE: dict[str, str] = {
    "profile": "The instance has the profile of its own claim: leave profile out.",
    "own_core": "It runs in another claim's instance and has none to open: leave own_core and own_memory_mib out.",
    "gpu_model": "It runs where the instance is: leave gpu_model out.",
    "node_selector": "It runs where the instance is: leave node_selector out.",
    "start_at": "Leave start_at out, and make the claim when it is to begin.",
}


class NotInThisInstance(Conflict, code="not-in-this-instance", title="The instance is not open to this claim"):
    """The claim that is named has no instance that others of its tenant and pool may use."""


class InstanceTooSmall(Invalid, code="instance-too-small", title="The instance is too small"):
    """The claim could not fit into the instance even if no other claim were in it."""


class NoMigGpu(Invalid, code="no-mig-gpu", title="The pool has no GPU in MIG mode"):
    """No GPU of the pool that the claim could be on is in MIG mode."""


class UnknownProfile(Invalid, code="unknown-profile", title="The pool has no such MIG profile"):
    """No GPU of the pool has a profile of this name."""


class ProfileTooSmall(Invalid, code="profile-too-small", title="No MIG profile is large enough"):
    """The profile that is named, or every one, has less core or memory than is asked for."""


class FixedByProfile(Conflict, code="fixed-by-profile", title="The claim has the size of its MIG instance"):
    """A live change of what the claim's profile decides."""


def is_hard(given: Mapping[str, Any]) -> bool:
    """Return True if the given fields ask for hard isolation; a profile or an instance alone does."""
    named = given.get("profile") is not None or given.get("instance_of") is not None
    return named or given.get("isolation") == Isolation.HARD


def with_profile(pool: Pool, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given fields of a claim with hard isolation; a profile that is named gives core and memory.

    One in the instance of another claim has that claim's profile, and keeps its own core and memory. Raises
    NotWithHardIsolation, NoMigGpu, UnknownProfile, ProfileTooSmall.
    """
    inside = given.get("instance_of") is not None
    asked = given if inside or not _is_resource_claim(given) else {**given, "pod": None}
    _refuse_fields(asked, REFUSED_INSIDE | INSIDE_TOO if inside else REFUSED)
    values = {**given, "isolation": Isolation.HARD, "rebalance": False}
    if inside or (name := given.get("profile")) is None:
        return values
    kinds = profiles_of(pool, given.get("gpu_model"))
    if name not in kinds:
        raise UnknownProfile(
            f"No GPU in MIG mode of pool {pool.name} has a profile {name}. There are: {', '.join(kinds)}.",
            profile=name,
            profiles=list(kinds),
        )
    core, memory_mib = kinds[name]
    if given.get("core_request", 0) > core or given.get("memory_mib", 0) > memory_mib:
        raise ProfileTooSmall(
            f"Profile {name} has {core} % core and {memory_mib} MiB: name another one, or only core and memory.",
            profile=name,
            core=core,
            memory_mib=memory_mib,
        )
    return {**values, "core_request": core, "memory_mib": memory_mib}


def _is_resource_claim(given: Mapping[str, Any]) -> bool:
    return (given.get("pod") or {}).get("kind") == RESOURCE_CLAIM


def with_smallest(pool: Pool, filled: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a claim with hard isolation with the smallest profile that has its core and memory.

    Raises NoMigGpu, ProfileTooSmall.
    """
    if filled.get("profile") is not None:
        return _with_own_part({**filled, "core_limit": filled["core_request"]})
    kinds = profiles_of(pool, filled.get("gpu_model"))
    core, memory_mib = filled["core_request"], filled["memory_mib"]
    enough = [(size, name) for name, size in kinds.items() if size[0] >= core and size[1] >= memory_mib]
    if not enough:
        listed = ", ".join(f"{name} ({size[0]} %, {size[1]} MiB)" for name, size in kinds.items())
        raise ProfileTooSmall(
            f"No MIG profile of pool {pool.name} has {core} % core and {memory_mib} MiB. There are: {listed}.",
            core=core,
            memory_mib=memory_mib,
        )
    (core, memory_mib), name = min(enough, key=lambda one: (one[0][1], one[0][0], one[1]))
    return _with_own_part(
        {**filled, "profile": name, "core_request": core, "core_limit": core, "memory_mib": memory_mib}
    )


def _with_own_part(filled: dict[str, Any]) -> dict[str, Any]:
    """Check the part of an opened instance that its own claim has. Raises ProfileTooSmall."""
    core, memory_mib = filled.get("own_core"), filled.get("own_memory_mib")
    if (core or 0) > filled["core_request"] or (memory_mib or 0) > filled["memory_mib"]:
        raise ProfileTooSmall(
            f"Profile {filled['profile']} has {filled['core_request']} % core and {filled['memory_mib']} MiB: "
            "own_core and own_memory_mib must not be above them.",
            profile=filled["profile"],
            core=filled["core_request"],
            memory_mib=filled["memory_mib"],
        )
    return filled


def find_opener(tenant: Tenant, pool: Pool, uid: UUID) -> Claim:
    """Return the claim whose instance others of this tenant and pool may use. Raises NotInThisInstance."""
    opener = Claim.objects.filter(tenant=tenant, uid=uid).select_related("pool").first()
    if opener is None:
        raise NotInThisInstance(f"{tenant.slug} has no claim {uid}.", claim=str(uid))
    if opener.own_core is None:
        words = "has no instance that is open to others: make one with profile, own_core and own_memory_mib"
    elif opener.pool_id != pool.pk:
        words = f"is in pool {opener.pool.name}: name that pool, or none"
    elif opener.state in (ClaimState.RELEASING, ClaimState.RELEASED) and opener.preempt_at is None:
        words = f"is {opener.state}: name one that is live"
    else:
        return opener
    raise NotInThisInstance(f"Claim {opener.name} ({uid}) {words}.", claim=str(uid))


def room_for_others(claim: Claim) -> dict[str, int]:
    """Return what other claims may take of the claim's new instance, as fields of its assignment."""
    if claim.own_core is None or claim.own_memory_mib is None:
        return {}
    return {
        "room_core": claim.core_request - claim.own_core,
        "room_memory_mib": claim.memory_mib - claim.own_memory_mib,
    }


def parts_of_instance(claim: Claim) -> dict[str, int]:
    """Return the fields of the assignment that opens the claim's new instance: its own part, and the rest."""
    room = room_for_others(claim)
    return room and {**room, "taken_core": claim.own_core or 0, "taken_memory_mib": claim.own_memory_mib or 0}


def inside(opener: Claim, filled: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a claim in this claim's instance. Raises InstanceTooSmall."""
    refuse_beyond(opener, filled)
    return {**filled, "profile": opener.profile, "instance_of": opener.uid}


def refuse_beyond(opener: Claim, wanted: Mapping[str, Any]) -> None:
    """Refuse what does not fit into the claim's instance beside its own part. Raises InstanceTooSmall."""
    core, memory_mib = room_for_others(opener).values()
    if wanted["core_request"] > core or wanted["memory_mib"] > memory_mib or wanted["core_limit"] > opener.core_request:
        raise InstanceTooSmall(
            f"The instance of claim {opener.name} has {core} % core and {memory_mib} MiB for claims in it, and its "
            f"core_limit is at most {opener.core_request} %: ask for less, or name a claim with a larger instance.",
            core=core,
            memory_mib=memory_mib,
            core_limit=opener.core_request,
        )


def profiles_of(pool: Pool, gpu_model: str | None) -> dict[str, tuple[int, int]]:
    """Return the (core, MiB) of each profile of the pool's GPUs in MIG mode, by name, smallest first.

    Raises NoMigGpu.
    """
    gpus = Gpu.objects.filter(node__pool=pool, present=True, mig__isnull=False)
    if gpu_model:
        gpus = gpus.filter(model__in=gpu_model.split("|"))
    found: dict[str, tuple[int, int]] = {}
    static = pool.mig == MigInstances.STATIC
    for facts in gpus.values_list("mig", flat=True):
        mig = mig_state(facts, 0, ready=True, static=static)
        if mig is None:
            continue
        for profile in (one for one in mig.profiles if one.starts):
            size = (core_percent(profile, mig.profiles), profile.memory_mib)
            known = found.get(profile.name, size)
            found[profile.name] = (min(known[0], size[0]), min(known[1], size[1]))
    if not found and static and gpus.exists():
        raise NoMigGpu(
            f"Pool {pool.name} has static MIG instances, and none is there: ask an operator to make some, or to set "
            "the pool's mig to on-demand (docs/mig.md).",
            pool=pool.name,
        )
    if not found:
        of_model = f" of model {gpu_model}" if gpu_model else ""
        raise NoMigGpu(
            f"Pool {pool.name} has no GPU{of_model} in MIG mode: ask for isolation shared, name another pool, or "
            "ask an operator (docs/mig.md).",
            pool=pool.name,
        )
    return dict(sorted(found.items(), key=lambda item: (item[1][1], item[1][0], item[0])))


def refuse_change(claim: Claim, changed: Mapping[str, Any]) -> None:
    """Refuse a live change of what an instance fixes.

    Raises FixedByProfile, NotWithHardIsolation, ProfileTooSmall.
    """
    own = [name for name in OWN_PART if name in changed]
    if own and claim.own_core is None:
        raise FixedByProfile(
            "The claim opened no MIG instance, so it has no own part of one: make another claim with profile, own_core "
            "and own_memory_mib.",
            field=own[0],
            profile=claim.profile,
        )
    if claim.instance_of is not None:
        _refuse_fields(changed, INSIDE_TOO)
    elif claim.profile is not None and (fixed := [name for name in changed if name not in LIVE_IN_INSTANCE]):
        name = fixed[0]
        raise FixedByProfile(
            f"The claim has a MIG instance of {claim.profile}, so its {name} stays: make another claim, and release "
            "this one.",
            field=name,
            profile=claim.profile,
        )
    if own:
        present = {name: getattr(claim, name) for name in ("profile", "core_request", "memory_mib")}
        _with_own_part(present | dict(changed))


def _refuse_fields(given: Mapping[str, Any], refused: Mapping[str, str]) -> None:
    if given.get("gpu_count", 1) != 1:
        raise NotWithHardIsolation(
            "A program uses one MIG instance: leave gpu_count out, and make a claim for each instance.",
            field="gpu_count",
        )
    for field, words in refused.items():
        if given.get(field) not in (None, False, "", {}):
            raise NotWithHardIsolation(words, field=field)
