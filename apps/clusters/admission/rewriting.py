"""Rewriting of other formats' pods into gpu-manager's resources, and what of their words is lost by it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from apps.clusters.admission.policy import Policy
from apps.clusters.formats import FORMATS, Format, gpu_manager, gpushare, kubeshare, pods, translation
from apps.clusters.formats.asks import Ask, Unreadable


def asks_of(pod: pods.Pod, used: Format, policy: Policy) -> tuple[Ask, ...]:
    """Return the pod's requests in this format, in the units of the policy. Raises Unreadable."""
    if used.NAME == gpushare.NAME:
        return gpushare.asks(pod, unit_mib=policy.gpushare_unit_mib)
    return used.asks(pod)


def rewrite(pod: pods.Pod, used: Format, policy: Policy) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Return the pod's containers with gpu-manager's resources, by their key in the spec, and new annotations.

    Containers that ask nothing, and init containers that are no sidecars, are returned as they are. Raises Unreadable.
    """
    # A pod may have the labels of one format beside the resources of another.
    wishes = [format_.wishes(pod) for format_ in FORMATS if format_.NAME in policy.translated]
    if impossible := [sentence for one in wishes for sentence in one.impossible]:
        raise Unreadable(impossible[0])
    asks = _by_container(pod, used, policy)
    containers: dict[str, list[Any]] = {"containers": [], "initContainers": []}
    for key, every in (("containers", pods.containers(pod)), ("initContainers", pods.init_containers(pod))):
        for container in every:
            made = dict(container)
            if (ask := asks.get(str(container.get("name")))) is not None:
                amounts = translation.translate(ask, gpu_memory_mib=policy.gpu_memory_mib)
                made["resources"] = translation.replace_resources(container, used.RESOURCES, amounts)
            containers[key].append(made)
    ceiling = translation.ceiling(list(asks.values()))
    said = {} if ceiling is None else {gpu_manager.CORE_LIMIT: str(ceiling)}
    for one in wishes:
        said |= one.annotations
    return {key: every for key, every in containers.items() if every}, said


def shortfalls(pod: pods.Pod, used: Format, policy: Policy) -> Iterator[str]:
    """Yield what is lost of the pod's words, as sentences: it is not rewritten at all, or some words are not followed.

    `pod` is as the mutating webhook left it.
    """
    if used.NAME in policy.translated:
        yield f"It is left as it is, and nothing here gives it a GPU. {_why_not_rewritten(pod, used, policy)}"
    for format_ in FORMATS:
        if format_.NAME in {gpu_manager.NAME, *policy.translated}:
            yield from format_.wishes(pod).unmet


def _why_not_rewritten(pod: pods.Pod, used: Format, policy: Policy) -> str:
    if used.NAME == kubeshare.NAME and kubeshare.prefix_of(pod) != kubeshare.V2_PREFIX:
        return f"The annotations of {kubeshare.NAME} 1 are those of a SharePod: create one."
    try:
        rewrite(pod, used, policy)
    except Unreadable as error:
        return error.detail
    return f"The mutating webhook did not see it as a pod of {used.NAME}: create it again."


def _by_container(pod: pods.Pod, used: Format, policy: Policy) -> Mapping[str, Ask]:
    """Return the asks by container name.

    A pod-level ask (KubeShare's labels) belongs to the first container; resources belong to the container that names
    them.
    """
    if used.NAME == kubeshare.NAME:
        if kubeshare.prefix_of(pod) != kubeshare.V2_PREFIX:
            return {}
        first = str(pods.containers(pod)[0].get("name"))
        return {ask.container: ask for ask in (replace(ask, container=first) for ask in used.asks(pod))}
    found = {}
    for container in pods.lasting_containers(pod):
        name = str(container.get("name"))
        alone = {**pod, "spec": {**pod["spec"], "containers": [container], "initContainers": []}}
        for ask in asks_of(alone, used, policy):
            found[name] = replace(ask, container=name)
    return found
