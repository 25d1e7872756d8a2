"""Resizing of running pods: requested by annotations or by the API, answered in the pod itself.

A pod's extended resources never change, so annotations carry the request: gpu-manager's `tencent.com/vcuda-core-limit`,
and `gpucloud.io/vcuda-core` and `gpucloud.io/vcuda-memory` in the resources' own units. A value is for every container
that holds a GPU, or for some by name: "40", "train=40,serve=20". It becomes a resize of the claim, with its quota and
its refusals; the node's result comes back as the annotation `gpucloud.io/resize-status` and an Event.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from django.db import transaction
from django.db.models import F, Q

from apps.clusters.formats import pods
from apps.clusters.formats.gpu_manager import CORE_LIMIT, UNIT_MIB
from apps.clusters.kube.client import Refused
from apps.clusters.models import Cluster, PodClaim, PodResize
from apps.clusters.models.resize import TellState
from apps.clusters.services import pod_events
from apps.clusters.services.in_force import pending_reason
from apps.quotas.principals import Principal
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from gpucloud.errors import Busy, GpucloudError

logger = logging.getLogger(__name__)

CORE = "gpucloud.io/vcuda-core"
MEMORY = "gpucloud.io/vcuda-memory"
STATUS = pods.RESIZE_STATUS
KEYS = (CORE, CORE_LIMIT, MEMORY)
# Longest annotation that is read.
LONGEST = 1000
REASONS = {TellState.IN_FORCE: ("Normal", "Resized"), TellState.REFUSED: ("Warning", "ResizeRefused")}


class Api(pod_events.Api, Protocol):
    """Client of the pod's cluster."""

    def patch(self, path: str, body: Mapping[str, Any]) -> bytes: ...


class ResizeStatus(NamedTuple):
    """Status of one container for the pod's annotation."""

    state: TellState
    facts: dict[str, Any]


def follow(*, cluster: Cluster, pod_uid: str, annotations: Mapping[str, str]) -> None:
    """Apply the pod's annotations if they changed. A refusal is stored for the pod's status.

    Raises Busy: retry with the pod's next event.
    """
    words = _words_of(annotations)
    rows = PodClaim.objects.live().filter(cluster=cluster, pod_uid=pod_uid, claim__isnull=False)
    for row in rows.select_related("claim__tenant", "cluster", "resize"):
        known = getattr(row, "resize", None)
        if (known.words if known is not None else {}) != words:
            _act(row, words)


def changed(*, cluster: Cluster, annotations: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the uids of the pods for which `follow` has something to do; annotations are given by uid. One query."""
    rows = PodClaim.objects.live().filter(cluster=cluster, pod_uid__in=annotations, claim__isnull=False)
    known = rows.order_by("pk").values_list("pod_uid", "resize__words")
    return list({uid: None for uid, words in known if (words or {}) != _words_of(annotations[uid])})


def _words_of(annotations: Mapping[str, str]) -> dict[str, str]:
    return {key: annotations[key][:LONGEST] for key in KEYS if key in annotations}


@transaction.atomic
def _act(row: PodClaim, words: dict[str, str]) -> None:
    resize, _ = PodResize.objects.select_for_update().get_or_create(container=row)
    assert row.claim is not None
    refusal, before = "", row.claim.generation
    now = before
    try:
        values: dict[str, Any] = parse_request(words, row.container)
        with transaction.atomic():
            if values:
                changes = ClaimChanges(**values)
                now = resize_claim(principal=_principal(row), claim=row.claim, changes=changes).generation
    except Busy:
        raise
    except GpucloudError as error:
        refusal = error.detail[:2000]
    if refusal or resize.refusal or now > before:
        resize.told = TellState.PENDING
    if refusal:
        resize.told_generation = before
    resize.change(words=words, refusal=refusal, told=resize.told, told_generation=resize.told_generation)


def parse_request(words: Mapping[str, str], container: str) -> dict[str, Any]:
    """Return the claim's new fields for this container. Raises Unreadable."""
    named = {
        "core_request": (CORE, 1, 100),
        "core_limit": (CORE_LIMIT, 1, 100),
        "memory_mib": (MEMORY, UNIT_MIB, 2**22),
    }
    values: dict[str, Any] = {}
    for name, (key, unit, most) in named.items():
        number = _of_container(words.get(key), container, key, most)
        if number is not None:
            values[name] = number * unit
    return values


def _of_container(said: str | None, container: str, key: str, most: int) -> int | None:
    if said is None:
        return None
    if "=" not in said:
        return pods.whole_text(said.strip(), key, most=most)
    parts = dict(part.strip().split("=", 1) for part in said.split(",") if "=" in part)
    return pods.whole_text(parts[container].strip(), f"{key}, {container}", most=most) if container in parts else None


def tell(*, cluster: Cluster, api: Api) -> int:
    """Write the status of changed shares to their pods; return the number of containers. Raises Busy."""
    news: dict[tuple[str, str, str], list[PodClaim]] = {}
    for row in _pending_pods(cluster):
        news.setdefault((row.namespace, row.pod, row.pod_uid), []).append(row)
    told = 0
    for (namespace, name, uid), due in news.items():
        rows = PodClaim.objects.live().filter(cluster=cluster, pod_uid=uid, claim__isnull=False)
        said = {row.container: of_container(row) for row in rows.select_related("claim", "resize").order_by("pk")}
        changed = [row for row in due if _differs(row, said[row.container])]
        if not changed:
            continue
        try:
            _write(api, f"/api/v1/namespaces/{namespace}/pods/{name}", uid, said)
            for row in changed:
                _post_event(api, row, said[row.container])
                _record_told(row, said[row.container])
                told += 1
        except Busy:
            raise
        except GpucloudError as error:
            logger.info("status of pod %s/%s not written: %s", namespace, name, error.detail)
            if isinstance(error, Refused) and error.worth_another_try:
                continue
            # It is gone, or another pod has its name; the watch will report it.
            for row in changed:
                _record_told(row, said[row.container])
    return told


def _write(api: Api, path: str, uid: str, said: Mapping[str, ResizeStatus]) -> None:
    text = json.dumps({container: {"state": one.state, **one.facts} for container, one in said.items()})
    # The uid protects another pod of that name.
    api.patch(path, {"metadata": {"uid": uid, "annotations": {STATUS: text}}})


def of_container(row: PodClaim) -> ResizeStatus:
    """Return the status of the container's shares."""
    claim, resize = row.claim, getattr(row, "resize", None)
    assert claim is not None
    facts: dict[str, Any] = {
        "core": claim.core_request,
        "coreLimit": claim.core_limit,
        "memory": claim.memory_mib // UNIT_MIB,
        "generation": claim.generation,
    }
    if resize is not None and resize.refusal and claim.generation == resize.told_generation:
        return ResizeStatus(TellState.REFUSED, facts | {"reason": resize.refusal})
    why = pending_reason(claim)
    if why is None:
        return ResizeStatus(TellState.IN_FORCE, facts)
    return ResizeStatus(TellState.PENDING, facts | {"reason": why[:500]})


def _pending_pods(cluster: Cluster) -> Iterable[PodClaim]:
    """Return containers whose shares changed and whose result is not written yet."""
    rows = PodClaim.objects.live().filter(cluster=cluster, claim__isnull=False)
    changed = Q(claim__generation__gt=1, resize__isnull=True) | Q(claim__generation__gt=F("resize__told_generation"))
    return rows.filter(changed | Q(resize__told=TellState.PENDING)).select_related("claim", "resize").order_by("pk")


def _differs(row: PodClaim, said: ResizeStatus) -> bool:
    resize = getattr(row, "resize", None)
    generation = resize.told_generation if resize is not None else 1
    return (resize.told if resize is not None else "", generation) != (said.state, said.facts["generation"])


def _record_told(row: PodClaim, said: ResizeStatus) -> None:
    resize, _ = PodResize.objects.get_or_create(container=row)
    resize.change(told=said.state, told_generation=said.facts["generation"])


def _post_event(api: Api, row: PodClaim, said: ResizeStatus) -> None:
    if said.state not in REASONS:
        return
    kind, reason = REASONS[said.state]
    facts = said.facts
    words = (
        f"Container {row.container}: core {facts['core']} to {facts['coreLimit']}, memory {facts['memory']} x 256 MiB"
    )
    if said.state == TellState.REFUSED:
        words = f"Container {row.container} keeps its shares: {facts['reason']}"
    pod_events.post(api, row, kind=kind, reason=reason, words=words)


def _principal(row: PodClaim) -> Principal:
    """Return the principal of the annotations' writer: a member, because the cluster decides who may annotate."""
    assert row.claim is not None
    return Principal(name=f"cluster:{row.cluster.name}", roles={row.claim.tenant_id: "member"})
