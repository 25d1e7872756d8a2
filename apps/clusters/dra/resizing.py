"""Resizing of ResourceClaims by annotation, and the status that they show.

A ResourceClaim's spec and allocation never change, so annotations carry the request. The result stands beside the
allocated devices, where `kubectl describe resourceclaim` shows it: a condition, and the size in force.
"""

import logging
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from agent.wire import DRA_DRIVER as DRIVER
from apps.clusters.dra import requests
from apps.clusters.dra.ledger import Labels
from apps.clusters.dra.requests import Thing
from apps.clusters.kube.client import Refused
from apps.clusters.models import Cluster, DeviceClaim
from apps.clusters.models.resize import TellState
from apps.clusters.services import bindings
from apps.clusters.services.in_force import pending_reason
from apps.quotas.principals import Principal
from apps.scheduling.models import Claim, ClaimState
from apps.scheduling.models.claim import PLACED
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from gpucloud.errors import Busy, Conflict, GpucloudError

logger = logging.getLogger(__name__)

CONDITION = "InForce"
REASONS = {TellState.IN_FORCE: "InForce", TellState.PENDING: "Pending", TellState.REFUSED: "Refused"}
MANAGER = "gpucloud"
APPLY = "application/apply-patch+yaml"
LONGEST = 2000
# The time that one call may take; and the age below which a new claim's pending status is not written.
TELL_SECONDS, FRESH = 0.5, timedelta(seconds=2)
# As many are read for one call: more cannot be written in its time.
MOST_TOLD = 200


class Rebound(Conflict, code="namespace-rebound", title="The namespace belongs to another tenant now"):
    """A claim of the namespace's former tenant is to grow."""


class Api(Protocol):
    """Client of the ResourceClaim's cluster."""

    def patch(self, path: str, body: Mapping[str, Any], *, content_type: str) -> bytes: ...


class ClaimStatus(NamedTuple):
    """Status that the ResourceClaim is to show."""

    state: TellState
    message: str
    generation: int


@transaction.atomic
def follow(row: DeviceClaim, thing: Thing, *, labels: Labels) -> None:
    """Apply the ResourceClaim's annotations if they changed, or if they were refused. A refusal is stored.

    A size that was set by other ways since counts more than what was refused before. Raises Busy: retry later.
    """
    words, claim = requests.resize_words(thing), row.claim
    if claim is None or claim.state not in PLACED or not (words != row.words or _is_refused(row, claim)):
        return
    refusal, before, now = "", claim.generation, claim.generation
    try:
        if values := requests.read_resize(words):
            _check_payer(row, claim, values, labels)
            changes = ClaimChanges(**values)  # type: ignore[arg-type]  # its fields are these
            principal = Principal(name=f"cluster:{row.cluster.name}", roles={claim.tenant_id: "member"})
            with transaction.atomic():
                now = resize_claim(principal=principal, claim=claim, changes=changes).generation
    except Busy:
        raise
    except GpucloudError as error:
        refusal = error.detail[:LONGEST]
    if words == row.words and refusal == row.refusal:
        return
    told = TellState.PENDING if refusal or row.refusal or now > before else row.told
    row.change(words=words, refusal=refusal, told=told, told_generation=before if refusal else row.told_generation)


def _is_refused(row: DeviceClaim, claim: Claim) -> bool:
    """Return True if the annotations were refused and the claim has not changed since."""
    return bool(row.refusal) and claim.generation == row.told_generation


def find_refused(cluster: Cluster) -> QuerySet[DeviceClaim]:
    """Return the ResourceClaims whose annotations are to be tried again."""
    rows = DeviceClaim.objects.live().filter(cluster=cluster, claim__generation=F("told_generation"))
    return rows.exclude(refusal="")


def _check_payer(row: DeviceClaim, claim: Claim, values: Mapping[str, int], labels: Labels) -> None:
    """Let a claim of a namespace's former tenant shrink, but not grow at that tenant's cost. Raises Rebound."""
    if all(value <= (getattr(claim, name) or 0) for name, value in values.items()):
        return
    payer = bindings.payer(row.cluster, row.namespace, labels)
    if payer.pk != claim.tenant_id:
        raise Rebound(
            f"Namespace {row.namespace} is bound to tenant {payer.slug} now, and this claim is charged to "
            f"{claim.tenant.slug}: it can shrink, not grow. Create the ResourceClaim anew.",
            namespace=row.namespace,
        )


def read_status(row: DeviceClaim, claim: Claim) -> ClaimStatus:
    """Return the status of a placed claim."""
    if _is_refused(row, claim):
        return ClaimStatus(TellState.REFUSED, row.refusal, claim.generation)
    why = pending_reason(claim)
    if why is None:
        return ClaimStatus(TellState.IN_FORCE, "", claim.generation)
    return ClaimStatus(TellState.PENDING, why, claim.generation)


def find_untold(cluster: Cluster) -> QuerySet[DeviceClaim]:
    """Return the placed ResourceClaims whose status may differ from what they show."""
    rows = DeviceClaim.objects.live().filter(cluster=cluster, claim__isnull=False).exclude(node_name="")
    stale = ~Q(told__in=(TellState.IN_FORCE, TellState.REFUSED)) | Q(claim__generation__gt=F("told_generation"))
    left = Q(told=TellState.IN_FORCE) & ~Q(claim__state=ClaimState.ACTIVE)
    return rows.filter(stale | left).select_related("claim").prefetch_related("claim__assignments").order_by("pk")


class Teller:
    """Writer of changed statuses into one cluster's ResourceClaims."""

    def __init__(self, cluster: Cluster, api: Api) -> None:
        self._cluster, self._api = cluster, api
        # What was written of those that are pending, by uid: their reason may change alone.
        self._messages: dict[str, str] = {}
        # The last row that the call before had time for.
        self._after = 0

    def tell(self, there: Mapping[str, Thing]) -> int:
        """Write as many as there is time for; return their number. The others come next. Raises Busy.

        `there`: the ResourceClaims by uid.
        """
        told, end = 0, time.monotonic() + TELL_SECONDS
        self._messages = {uid: said for uid, said in self._messages.items() if uid in there}
        rows = list(find_untold(self._cluster).filter(pk__gt=self._after)[:MOST_TOLD])
        self._after = rows[-1].pk if len(rows) == MOST_TOLD else 0
        for row in rows:
            if (thing := there.get(row.uid)) is not None:
                told += self._tell(row, thing)
            if time.monotonic() >= end:
                self._after = row.pk
                break
        return told

    def _tell(self, row: DeviceClaim, thing: Thing) -> bool:
        """Write one status if it changed."""
        claim = row.claim
        assert claim is not None
        said = read_status(row, claim)
        if said.state == TellState.PENDING and row.told == TellState.NOTHING and _is_fresh(claim):
            return False
        before = self._messages.pop(row.uid, None)
        message = said.message if said.state == TellState.PENDING else None
        if (row.told, row.told_generation, before) == (said.state, said.generation, message):
            if message is not None:
                self._messages[row.uid] = message
            return False
        try:
            _write(self._api, row, claim, said, thing)
        except Busy:
            raise
        except GpucloudError as error:
            logger.info("status of ResourceClaim %s not written: %s", row, error.detail)
            if isinstance(error, Refused) and error.worth_another_try:
                return False
            # It is gone, or another one has its name; the watch will report it.
        if message is not None:
            self._messages[row.uid] = message
        row.change(told=said.state, told_generation=said.generation)
        return True


def _is_fresh(claim: Claim) -> bool:
    """Return True if the claim was just placed: that it is in force is worth a write, that it will be is not."""
    return claim.assigned_at is not None and timezone.now() - claim.assigned_at < FRESH


def _since(thing: Thing, status: str) -> str:
    """Return since when the condition has this status, as far as the ResourceClaim says."""
    for entry in (thing.get("status") or {}).get("devices") or ():
        for condition in entry.get("conditions") or () if entry.get("driver") == DRIVER else ():
            if (condition.get("type"), condition.get("status")) == (CONDITION, status):
                return str(condition["lastTransitionTime"])
    return timezone.now().strftime("%Y-%m-%dT%H:%M:%SZ")


def _write(api: Api, row: DeviceClaim, claim: Claim, said: ClaimStatus, thing: Thing) -> None:
    """Apply our devices' status; those of other drivers stay, as the list's entries are owned one by one."""
    condition = {
        "type": CONDITION,
        "status": "True" if said.state == TellState.IN_FORCE else "False",
        "reason": REASONS[said.state],
        "message": said.message[:LONGEST],
    }
    condition["lastTransitionTime"] = _since(thing, condition["status"])
    data = {
        "claim": str(claim.uid), "generation": said.generation, requests.CORE: claim.core_request,
        "coreLimit": claim.core_limit, requests.MEMORY: f"{claim.memory_mib}Mi",
    }  # fmt: skip
    entries = [
        {"driver": DRIVER, "pool": one.pool, "device": one.name, "conditions": [condition], "data": data}
        | ({"shareID": one.share_id} if one.share_id else {})
        for one in requests.read_allocation(thing)
    ]
    path = f"/apis/resource.k8s.io/v1/namespaces/{row.namespace}/resourceclaims/{row.name}/status"
    body = {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        # The uid protects another one of that name.
        "metadata": {"name": row.name, "namespace": row.namespace, "uid": row.uid},
        "status": {"devices": entries},
    }  # fmt: skip
    api.patch(f"{path}?fieldManager={MANAGER}&force=true", body, content_type=APPLY)
