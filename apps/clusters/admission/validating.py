"""Validating webhook: refuses pods that would run without their GPU or on another tenant's; warns of idle quotas.

gpu-admission and the kubelet let these through: less than a GPU without memory (bound without an index), memory without
compute (not recognised as a GPU pod), more than one GPU that is not a multiple of 100 core, init containers that end
(never given an index), pods that name their node (which skip the scheduler), and annotations written by anyone but a
scheduler. A DeviceClass as an extended resource would be refused again and again, at each attempt to bind the pod.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from apps.clusters.admission import instances, rewriting
from apps.clusters.admission.policy import Policy, asking_words, decision_annotations, decisions
from apps.clusters.admission.reviews import Review, Verdict
from apps.clusters.core.devices import DEVICE_CLASS, EXTENDED_RESOURCE
from apps.clusters.formats import BY_NAME, NEVER_COUNTED, format_of, gpu_manager, kubeshare, pods
from apps.clusters.formats.asks import Unreadable

logger = logging.getLogger(__name__)


def validate(review: Review, policy: Policy) -> Verdict:
    """Return the verdict on the new object; other kinds pass."""
    validators = {"Pod": _pod, "SharePod": _sharepod, "ResourceQuota": _quota}
    if review.operation not in ("CREATE", "UPDATE") or review.kind not in validators:
        return Verdict()
    try:
        return validators[review.kind](review, policy)
    except Unreadable as error:
        return Verdict(refusals=[error.detail])
    # The API server itself refuses objects that do not match Kubernetes' schema.
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        logger.info("%s in %s is not understood", review.kind, review.namespace, exc_info=True)
        return Verdict()


def _pod(review: Review, policy: Policy) -> Verdict:
    if review.operation == "UPDATE":
        return Verdict(refusals=list(_changed_decisions(review, policy)))
    pod = review.thing
    refusals = list(_forged_decisions(pod, review, policy))
    used = format_of(pod)
    refusals += _init_container_requests(pod, policy)
    refusals += _device_class_requests(pod)
    of_instances = instances.judge(pod, policy)
    refusals += of_instances.refusals
    if used is None:
        return Verdict(refusals=refusals, warnings=of_instances.warnings)
    rewriting.asks_of(pod, used, policy)
    refusals += _unequal_requests(pod)
    if pods.node_of(pod) and used.RESOURCES and not decision_annotations(pod):
        refusals.append(
            f"It names node {pods.node_of(pod)}, so no scheduler would choose its GPU: use a nodeSelector or affinity."
        )
    lost = list(rewriting.shortfalls(pod, used, policy))
    warnings = [*of_instances.warnings, *_scheduler_warnings(pod, policy)]
    if policy.refuse_unmet:
        return Verdict(refusals=refusals + lost, warnings=warnings)
    return Verdict(refusals=refusals, warnings=[*lost, *warnings])


def _forged_decisions(pod: pods.Pod, review: Review, policy: Policy) -> Iterator[str]:
    said = sorted(decisions(pod))
    if said and not policy.trusts(review.who):
        yield f"{said[0]} says which GPU a pod has, which the scheduler decides: leave it out."


def _changed_decisions(review: Review, policy: Policy) -> Iterator[str]:
    """Refuse changes of a pod's GPUs; its elastic ceiling may move within its bounds."""
    if not policy.trusts(review.who):
        if decisions(review.thing) != decisions(review.old):
            yield "Only the scheduler assigns GPUs to a pod: leave its annotations and labels as they are."
        elif changed := _differing(asking_words(review.thing), asking_words(review.old)):
            yield f"The {changed[0]} says what a pod asks, which is fixed once it exists: create another pod."
    ceiling = pods.annotations(review.thing).get(gpu_manager.CORE_LIMIT)
    if ceiling != pods.annotations(review.old).get(gpu_manager.CORE_LIMIT):
        gpu_manager.asks(review.thing)


def _differing(now: Mapping[str, str], before: Mapping[str, str]) -> list[str]:
    return sorted(key for key in {*now, *before} if now.get(key) != before.get(key))


def _unequal_requests(pod: pods.Pod) -> Iterator[str]:
    for container in pods.lasting_containers(pod):
        requests, limits = (pods.resources(container, kind) for kind in ("requests", "limits"))
        for name in gpu_manager.RESOURCES:
            if name in requests and _amount(requests, name) != _amount(limits, name):
                yield (
                    f"Container {container.get('name')}: requests of {name} are {requests[name]}, limits "
                    f"{limits.get(name, 'are not given')}: both must be the same. A ceiling above what is asked is the "
                    f"annotation {gpu_manager.CORE_LIMIT}."
                )


def _amount(amounts: Mapping[str, Any], name: str) -> int | None:
    return pods.whole(amounts[name], name) if name in amounts else None


def _init_container_requests(pod: pods.Pod, policy: Policy) -> Iterator[str]:
    ours = [*gpu_manager.RESOURCES, *(name for used in policy.translated for name in BY_NAME[used].RESOURCES)]
    for container in pods.init_containers(pod):
        if pods.is_sidecar(container):
            continue
        for name in ours:
            if pods.amount(container, name):
                yield (
                    f"Init container {container.get('name')} asks {name}: a container that ends before the others "
                    "start is given no GPU. Ask in a container or in a sidecar (restartPolicy: Always), and do this "
                    "step there."
                )


def _device_class_requests(pod: pods.Pod) -> Iterator[str]:
    for container in (*pods.containers(pod), *pods.init_containers(pod)):
        if any(EXTENDED_RESOURCE in pods.resources(container, kind) for kind in ("limits", "requests")):
            yield (
                f"Container {container.get('name')} asks {EXTENDED_RESOURCE}, which cannot say how much of a GPU it "
                f"gets: use a ResourceClaim of class {DEVICE_CLASS}."
            )


def _scheduler_warnings(pod: pods.Pod, policy: Policy) -> Iterator[str]:
    chosen = (pod.get("spec") or {}).get("schedulerName") or "default-scheduler"
    if policy.scheduler_name is not None and chosen != policy.scheduler_name:
        yield f"schedulerName is {chosen}: {policy.scheduler_name} is the one that chooses GPUs."


def _sharepod(review: Review, policy: Policy) -> Verdict:
    del policy
    name = pods.name_of(review.thing)
    if not pods.containers(review.thing):
        return Verdict(refusals=[f"{name}: its spec has no containers; it is a pod's spec."])
    if not kubeshare.asks(review.thing):
        return Verdict(warnings=[f"{name} asks for no share of a GPU: see {kubeshare.V1_PREFIX}gpu_request."])
    return Verdict()


def _quota(review: Review, policy: Policy) -> Verdict:
    del policy
    hard = (review.thing.get("spec") or {}).get("hard") or {}
    return Verdict(
        warnings=[
            f"{key} is never counted: Kubernetes enforces requests.{key.partition('.')[2]} only."
            for key in sorted(hard)
            if key.startswith(NEVER_COUNTED)
        ]
    )
