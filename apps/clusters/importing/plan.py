"""Plan of an import: the tenants, quotas and assignments of a cluster's objects, and reasons for the rest. Pure.

Quotas: gpu-admission's ConfigMap `gpuquota` counts GPUs by model, ResourceQuotas count amounts; of several limits on
one resource the smallest counts. Resources without a limit in the cluster stay unlimited here: otherwise running pods
could not be taken over. Pods: each live pod on a node is read in its format.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from apps.clusters.formats import (
    NEVER_COUNTED,
    QUOTAS,
    Format,
    format_of,
    gpu_manager,
    gpushare,
    hami,
    kubeshare,
    pods,
)
from apps.clusters.formats.asks import WHOLE, Share, Unreadable

QUOTA_MAP = ("kube-system", "gpuquota")
QUOTA_KEY = "gpu_quota"
CORE, MEMORY = "core_percent", "memory_mib"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cluster's objects as its API server returns them."""

    pods: Sequence[Mapping[str, Any]]
    resource_quotas: Sequence[Mapping[str, Any]] = ()
    # The data of `kube-system/gpuquota`, or None.
    quota_map: Mapping[str, str] | None = None
    sharepods: Sequence[Mapping[str, Any]] = ()
    # Labels by namespace; tenants may be bound by labels.
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QuotaWanted:
    """A namespace's limit of one resource; None: unlimited."""

    namespace: str
    resource: str
    hard: int | None


@dataclass(frozen=True, slots=True)
class PodWanted:
    """A pod and the shares of its containers."""

    namespace: str
    name: str
    uid: str
    node: str
    format: str
    shares: tuple[Share, ...]
    # Index of each share's container among those that last (`pods.lasting_containers`).
    places: tuple[int, ...]
    labels: Mapping[str, str | None]
    # The claim for which it was created, according to its annotation.
    claim: str = ""


@dataclass(frozen=True, slots=True)
class Left:
    """An object that is not taken over, or not as it was, with the reason."""

    about: str
    why: str


@dataclass(slots=True)
class Plan:
    """The whole plan, in an order independent of the API server's."""

    namespaces: list[str] = field(default_factory=list)
    quotas: list[QuotaWanted] = field(default_factory=list)
    pods: list[PodWanted] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    # Labels by namespace.
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def plan(snapshot: Snapshot, *, gpushare_unit_mib: int = gpushare.GIB) -> Plan:
    """Return the plan of this snapshot."""
    made = Plan(labels=snapshot.labels)
    hard: dict[str, dict[str, int]] = {}
    _read_quota_map(snapshot.quota_map, hard, made)
    for quota in snapshot.resource_quotas:
        _read_resource_quota(quota, hard, made, gpushare_unit_mib)
    bound = {
        pods.name_of(item): str((item.get("status") or {}).get("BoundDeviceID") or "") for item in snapshot.sharepods
    }
    for pod in sorted(snapshot.pods, key=pods.name_of):
        wanted = _pod(pod, made, bound, gpushare_unit_mib)
        if wanted is not None:
            made.pods.append(wanted)
    made.namespaces = sorted({*hard, *(pod.namespace for pod in made.pods)})
    for namespace in made.namespaces:
        said = hard.get(namespace, {})
        named = sorted({CORE, MEMORY, *said})
        made.quotas += [QuotaWanted(namespace, resource, said.get(resource)) for resource in named]
    return made


def _read_quota_map(data: Mapping[str, str] | None, hard: dict[str, dict[str, int]], made: Plan) -> None:
    """Read GPUs by model and namespace: `{"team": {"quota": {"M40": 8}, "pool": ["public"]}}`."""
    if data is None:
        return
    about = f"ConfigMap {'/'.join(QUOTA_MAP)}"
    try:
        whole = json.loads(data.get(QUOTA_KEY) or "")
    except ValueError:
        whole = None
    if not isinstance(whole, dict):
        made.left.append(Left(about, f"Its key {QUOTA_KEY} is not a JSON object: repair it, or set quotas here."))
        return
    for namespace, said in sorted(whole.items()):
        models = said.get("quota") if isinstance(said, dict) else None
        if not isinstance(models, dict) or not all(_is_count(count) for count in models.values()):
            made.left.append(Left(f"{about}, {namespace}", "Its quota is not a number of GPUs for each model."))
            continue
        _lower(hard, namespace, CORE, sum(models.values()) * WHOLE)
        _tell_of_models(f"{about}, {namespace}", models, said.get("pool"), made)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= pods.MOST // WHOLE


def _tell_of_models(about: str, models: Mapping[str, int], pools: object, made: Plan) -> None:
    if len(models) > 1:
        counts = ", ".join(f"{count} {model}" for model, count in sorted(models.items()))
        made.left.append(
            Left(about, f"{counts} became one sum: models are distinguished by pools here, with a quota for each pool.")
        )
    if pools:
        made.left.append(Left(about, f"Its pools {pools} are labels of nodes: pods are charged to the cluster's pool."))


def _read_resource_quota(
    quota: Mapping[str, Any], hard: dict[str, dict[str, int]], made: Plan, gpushare_unit_mib: int
) -> None:
    about = f"ResourceQuota {pods.name_of(quota)}"
    namespace = str((quota.get("metadata") or {}).get("namespace"))
    said: dict[str, int] = {}
    for key, value in sorted(((quota.get("spec") or {}).get("hard") or {}).items()):
        if key.startswith(NEVER_COUNTED):
            made.left.append(Left(about, f"{key} was never counted by Kubernetes, and is not taken over."))
        elif key in QUOTAS:
            try:
                said[key] = pods.whole(value, f"{about}, {key}")
            except Unreadable as error:
                made.left.append(Left(about, error.detail))
    for read in (gpu_manager.quota(said), hami.quota(said), gpushare.quota(said, unit_mib=gpushare_unit_mib)):
        for resource, amount in read.items():
            _lower(hard, namespace, resource, amount)


def _lower(hard: dict[str, dict[str, int]], namespace: str, resource: str, amount: int) -> None:
    here = hard.setdefault(namespace, {})
    here[resource] = min(amount, here.get(resource, amount))


def _pod(pod: pods.Pod, made: Plan, bound: Mapping[str, str], gpushare_unit_mib: int) -> PodWanted | None:
    """Return the pod to take over; None if it holds nothing or the reason is in `left`."""
    about = f"Pod {pods.name_of(pod)}"
    try:
        used = format_of(pod)
        if used is None or not pods.is_live(pod):
            return None
        if pods.labels(pod).get(kubeshare.PLACEHOLDER):
            made.left.append(Left(about, "It only keeps a GPU for KubeShare: the shares on that GPU are taken over."))
            return None
        if not pods.node_of(pod):
            made.left.append(Left(about, "It is on no node yet: it is placed when its scheduler asks."))
            return None
        shares = _shares(pod, used, bound, gpushare_unit_mib)
    except Unreadable as error:
        made.left.append(Left(about, error.detail))
        return None
    if not shares:  # it requests nothing
        return None
    names = [str(container.get("name")) for container in pods.lasting_containers(pod)]
    shares = tuple(_with_container(share, pod, used) for share in shares)
    meta = pod.get("metadata") or {}
    return PodWanted(
        namespace=str(meta.get("namespace") or "default"),
        name=str(meta.get("name")),
        uid=str(meta.get("uid")),
        node=pods.node_of(pod),
        format=used.NAME,
        shares=shares,
        places=tuple(names.index(share.container) for share in shares),
        labels=_labels(pod, used),
        claim=pods.annotations(pod).get(pods.CLAIM, ""),
    )


def _shares(pod: pods.Pod, used: Format, bound: Mapping[str, str], gpushare_unit_mib: int) -> tuple[Share, ...]:
    if used.NAME == gpushare.NAME:
        return gpushare.holds(pod, unit_mib=gpushare_unit_mib)
    if used.NAME == kubeshare.NAME:
        return kubeshare.holds(pod, gpu_uuid=bound.get(pods.name_of(pod), ""))
    return used.holds(pod)


def _with_container(share: Share, pod: pods.Pod, used: Format) -> Share:
    """Assign a pod-level share to the first asking container: a claim belongs to one container."""
    if share.container:
        return share
    asking = [
        container
        for container in pods.lasting_containers(pod)
        if not used.RESOURCES or any(pods.amount(container, name) for name in used.RESOURCES)
    ]
    first = (asking or pods.containers(pod))[0]
    return Share(
        str(first.get("name")),
        share.core_request,
        share.core_limit,
        share.memory_mib,
        gpu_uuid=share.gpu_uuid,
        gpu_index=share.gpu_index,
    )


def _labels(pod: pods.Pod, used: Format) -> dict[str, str | None]:
    if used.NAME != kubeshare.NAME:
        return {}
    (ask,) = kubeshare.asks(pod)
    return {"affinity": ask.affinity, "anti_affinity": ask.anti_affinity, "exclusion": ask.exclusion}


def shares_by_container(wanted: PodWanted) -> Iterable[tuple[int, str, tuple[Share, ...]]]:
    """Yield index, name and shares of each container."""
    for place in sorted(set(wanted.places)):
        mine = tuple(share for share, at in zip(wanted.shares, wanted.places, strict=True) if at == place)
        yield place, mine[0].container, mine
