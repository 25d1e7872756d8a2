"""ResourceClaims in the ledger: charged at creation, placed where kube-scheduler allocated, released at their end."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from apps.clusters.dra import requests
from apps.clusters.dra.requests import Device, DeviceRequest, Thing
from apps.clusters.models import Cluster, DeviceClaim
from apps.clusters.services import bindings, placing
from apps.nodes.models import Gpu
from apps.scheduling.models import Claim, ClaimState
from apps.scheduling.models.claim import RESOURCE_CLAIM
from apps.scheduling.services.charging import states
from apps.scheduling.services.claims import lifecycle
from apps.scheduling.services.claims.spec import ClaimSpec
from gpucloud.errors import GpucloudError

# Reads the labels of the ResourceClaim's namespace.
Labels = Callable[[], Mapping[str, str]]
# An object is written, and reported by the watch, soon after its webhooks.
SETTLED = timedelta(seconds=30)
# An ended ResourceClaim's row only says that its uid was charged before.
KEPT = timedelta(days=7)
# At once; the others come seconds later.
MOST_RELEASED = 100
UNUSED = "No pod has used it for too long: it holds no quota, and is charged again when a pod uses it."
ENDING = (ClaimState.RELEASING, ClaimState.RELEASED)
# A claim begins as large as the spec says, so the annotations are to be applied to each.
UNTOLD: dict[str, Any] = {"node_name": "", "words": {}, "refusal": "", "told": "", "told_generation": 0}
# A uid that has ended exists again where the cluster's etcd was restored from a backup.
NEW: dict[str, Any] = {**UNTOLD, "ended_at": None, "seen": False}


@transaction.atomic
def charge(*, cluster: Cluster, thing: Thing, asked: DeviceRequest, labels: Labels) -> DeviceClaim:
    """Create the ResourceClaim's claim, charged and not placed, unless it has one. Repeatable.

    Raises Unbound, and what creating a claim raises.
    """
    meta = thing["metadata"]
    uid = str(meta["uid"])
    key: dict[str, Any] = {"cluster": cluster, "uid": uid}
    row = DeviceClaim.objects.select_for_update(of=("self",)).filter(**key).first()
    if row is not None and row.ended_at is None and row.claim_id is not None:
        return row
    tenant = bindings.payer(cluster, meta["namespace"], labels)
    names = {"namespace": str(meta["namespace"]), "name": str(meta["name"])}
    claim = lifecycle.create_claim(
        principal=cluster.principal,
        spec=ClaimSpec(
            tenant=tenant,
            pool=cluster.pool,
            name=f"{names['namespace']}/{names['name']}"[:200],
            **_size_of(asked),
            pod={"kind": RESOURCE_CLAIM, **names, "uid": uid, "devices": {}},
        ),
    )
    values = {**names, **NEW, "tenant": tenant, "claim": claim, "problem": "", "problem_since": None}
    return DeviceClaim.objects.update_or_create(**key, defaults=values)[0]


def _size_of(asked: DeviceRequest) -> dict[str, Any]:
    """Return the fields of a claim of this size."""
    if asked.profile is not None:
        return {"profile": asked.profile}
    share = {"core_request": asked.core, "core_limit": asked.core, "memory_mib": asked.memory_mib}
    return {"gpu_count": asked.count, **share}


def follow(*, cluster: Cluster, thing: Thing, labels: Labels) -> DeviceClaim | None:
    """Bring the ledger in step with one ResourceClaim; return its row, None if it asks for nothing of ours.

    Repeatable. What cannot be done is the row's problem.
    """
    uid = str(thing["metadata"]["uid"])
    row = DeviceClaim.objects.live().filter(cluster=cluster, uid=uid).select_related("claim").first()
    try:
        devices = requests.read_allocation(thing)
        if row is None and not devices and not requests.asks(thing):
            return None
        return _keep_in_step(cluster, thing, labels, row, devices)
    except GpucloudError as error:
        return _note(cluster, thing, error.detail)
    except IntegrityError:
        # The webhook charged it at this moment; the next pass finds its claim.
        return _note(cluster, thing, "It was being charged at the same time.")


def _keep_in_step(
    cluster: Cluster, thing: Thing, labels: Labels, row: DeviceClaim | None, devices: Sequence[Device]
) -> DeviceClaim:
    claim = row.claim if row is not None else None
    if row is not None and claim is not None and _is_outdated(claim, devices):
        _detach(row, claim, cluster)
        claim = None
    if row is not None and claim is None and row.problem == UNUSED and not devices:
        return row
    if row is None or claim is None:
        asked = _asked_of(devices) if devices else requests.read_request(thing)
        row = charge(cluster=cluster, thing=thing, asked=asked, labels=labels)
        claim = row.claim
    assert claim is not None
    if devices and claim.state == ClaimState.ALLOCATING:
        _place(row, claim, devices, cluster)
    elif row.problem or not row.seen:
        row.change(problem="", problem_since=None, seen=True)
    return row


def _is_outdated(claim: Claim, devices: Sequence[Device]) -> bool:
    """Return True if the claim is of an allocation that ended; one that was released holds its devices to their end."""
    held = (claim.pod or {}).get("devices") or {}
    if claim.state in ENDING and not held:
        return True
    return bool(held) and {one["device"]: one for one in held.values()} != {one.name: one.facts for one in devices}


def _asked_of(devices: Sequence[Device]) -> DeviceRequest:
    """Return the request that these devices answer. Raises NotAsItRuns."""
    shares = {(one.core, one.memory_mib) for one in devices}
    if len(shares) > 1 or len({one.pool for one in devices}) > 1 or len({one.name for one in devices}) < len(devices):
        raise placing.NotAsItRuns("Its devices are unequal shares, several of one GPU, or of several nodes.")
    if (profile := devices[0].profile) is not None and len(devices) > 1:
        raise placing.NotAsItRuns("It has several MIG instances, and a claim has one.")
    [(core, memory_mib)] = shares
    return DeviceRequest(devices[0].request, len(devices), core, memory_mib, profile)


@transaction.atomic
def _place(row: DeviceClaim, seen: Claim, devices: Sequence[Device], cluster: Cluster) -> None:
    """Place the claim on the allocated GPUs, as large as was allocated. Raises NotAsItRuns, QuotaExceeded."""
    asked = _asked_of(devices)
    gpus = _gpus_of(devices, cluster)
    claim = lifecycle.locked(seen)
    if claim.state != ClaimState.ALLOCATING:
        return
    if asked.profile != claim.profile:
        raise placing.NotAsItRuns(f"It was charged as {claim.profile or 'a share'}, and has {devices[0].name}.")
    size = _size_of(asked)
    if asked.profile is None and size != {name: getattr(claim, name) for name in size}:
        for name, value in size.items():
            setattr(claim, name, value)
        states.charge_to(claim, claim.amounts, principal=cluster.principal)
    pod = {**(claim.pod or {}), "devices": {gpu.uuid: one.facts for gpu, one in zip(gpus, devices, strict=True)}}
    states.move(claim, ClaimState.PENDING, pod=pod, **size)
    placing.place_on(claim, gpus, start=devices[0].start)
    row.change(node_name=devices[0].node, problem="", problem_since=None, seen=True)
    # As it is placed now: its annotations are applied next.
    claim.refresh_from_db()
    row.claim = claim


def _gpus_of(devices: Sequence[Device], cluster: Cluster) -> list[Gpu]:
    """Return the GPUs of these devices, in their order. Raises NotAsItRuns."""
    node = placing.node_of(cluster.pool, devices[0].node)
    found = {requests.name_device(gpu.uuid): gpu for gpu in node.gpus.filter(present=True)}
    for one in devices:
        if one.gpu not in found:
            raise placing.NotAsItRuns(f"Node {one.node} has no {one.gpu}.")
    return [found[one.gpu] for one in devices]


@transaction.atomic
def _detach(row: DeviceClaim, claim: Claim, cluster: Cluster) -> None:
    """Release the claim of an allocation that is over; the ResourceClaim gets another one."""
    lifecycle.release_claim(principal=cluster.principal, claim=claim, why="its allocation has ended")
    why = "Its allocation has ended: it is to be charged anew."
    row.change(claim=None, problem=why, **UNTOLD)


@transaction.atomic
def renew(row: DeviceClaim, claim: Claim) -> None:
    """Drop the released claim of a ResourceClaim that is still allocated: the next pass charges and places another."""
    row.change(claim=None, problem=f"Claim {claim.uid} was released: it is to be charged anew.", **UNTOLD)


def release_unused(cluster: Cluster) -> int:
    """Release the claims that have waited too long for an allocation; return their number. Repeatable.

    The ResourceClaim stays, and is charged again when a pod uses it.
    """
    if not settings.RESOURCE_CLAIM_UNUSED_SECONDS:
        return 0
    old = timezone.now() - timedelta(seconds=settings.RESOURCE_CLAIM_UNUSED_SECONDS)
    rows = DeviceClaim.objects.live().filter(cluster=cluster, seen=True)
    unused = rows.filter(claim__state=ClaimState.ALLOCATING, claim__created_at__lt=old, problem="")
    return sum(_release_unused(row, cluster) for row in unused.select_related("claim").order_by("pk")[:MOST_RELEASED])


@transaction.atomic
def _release_unused(row: DeviceClaim, cluster: Cluster) -> bool:
    assert row.claim is not None
    claim = lifecycle.locked(row.claim)
    if claim.state != ClaimState.ALLOCATING:
        return False
    lifecycle.release_claim(principal=cluster.principal, claim=claim, why="no pod has used its ResourceClaim")
    row.change(claim=None, problem=UNUSED, problem_since=timezone.now(), **UNTOLD)
    return True


def prune(cluster: Cluster) -> int:
    """Remove the rows of ResourceClaims that ended long ago; return their number. Their claims stay."""
    removed, _ = DeviceClaim.objects.filter(cluster=cluster, ended_at__lt=timezone.now() - KEPT).delete()
    return removed


def _note(cluster: Cluster, thing: Thing, why: str) -> DeviceClaim:
    """Record why the ResourceClaim has no claim, or no place. Repeatable."""
    meta = thing["metadata"]
    values = {"namespace": str(meta["namespace"]), "name": str(meta["name"]), "seen": True}
    fresh: dict[str, Any] = {**values, "problem": why[:2000], "problem_since": timezone.now()}
    row, made = DeviceClaim.objects.get_or_create(cluster=cluster, uid=str(meta["uid"]), defaults=fresh)
    if row.ended_at is not None:
        row.change(claim=None, **NEW | fresh)
    elif not made and row.problem != fresh["problem"]:
        row.change(problem=fresh["problem"], problem_since=row.problem_since or fresh["problem_since"], seen=True)
    return row


def find_unseen(cluster: Cluster, there: Collection[str]) -> list[DeviceClaim]:
    """Return what the webhook charged a while ago and the watch has not seen; `there` are the uids that it has."""
    settled = timezone.now() - SETTLED
    rows = DeviceClaim.objects.live().filter(cluster=cluster, seen=False, created_at__lt=settled)
    # Few are unseen, and ten thousand uids in a query take half a second.
    return [row for row in rows if row.uid not in there]


@transaction.atomic
def end(*, cluster: Cluster, uid: str, why: str = "its ResourceClaim was deleted") -> bool:
    """Release what the ResourceClaim held; return False if there was nothing to end. Repeatable."""
    seen = DeviceClaim.objects.live().filter(cluster=cluster, uid=uid).select_related("claim").first()
    if seen is None:
        return False
    # Order of locks: claims first.
    if seen.claim is not None:
        lifecycle.release_claim(principal=cluster.principal, claim=seen.claim, why=why)
    row = DeviceClaim.objects.select_for_update(of=("self",)).get(pk=seen.pk)
    if row.ended_at is None:
        row.change(ended_at=timezone.now())
    return True
