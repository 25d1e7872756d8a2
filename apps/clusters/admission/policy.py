"""What an installation wants of its webhooks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from django.core.exceptions import ImproperlyConfigured

from apps.clusters.formats import gpu_manager, gpushare, hami, kubeshare, pods

# Which GPUs a pod has: only schedulers say so. Whoever else could, could take any GPU.
DECISIONS = (
    gpu_manager.INDEX_PREFIX,
    gpu_manager.NODE,
    gpu_manager.TIME,
    gpu_manager.ASSIGNED,
    hami.ALLOCATED,
    hami.TO_ALLOCATE,
    hami.NODE,
    gpushare.INDEX,
    gpushare.BY_POD,
    gpushare.ASSIGNED,
    "gpucloud.io/claim",
    "gpucloud.io/resize-status",
)
# Ours, gpu-admission's and gpu-manager's, and those who may do anything anyway. Not all of kube-system: its controllers
# make pods of templates that tenants write.
TRUSTED = frozenset(
    {
        "system:masters",
        "system:serviceaccounts:gpucloud",
        "system:serviceaccount:kube-system:gpu-admission",
        "system:serviceaccount:kube-system:gpu-manager",
    }
)
# Of KubeShare the labels of its version 2: a SharePod is no pod.
TRANSLATABLE = frozenset({hami.NAME, gpushare.NAME, kubeshare.NAME})


@dataclass(frozen=True, slots=True)
class Policy:
    """None: left as it is. `trusted`: names of users and groups that may say which GPU a pod has."""

    scheduler_name: str | None = None
    default_core: int | None = None
    default_memory_mib: int | None = None
    trusted: frozenset[str] = TRUSTED
    # Formats whose pods are rewritten into gpu-manager's words.
    translated: frozenset[str] = frozenset()
    # A directory of the nodes with the library, put into pods and preloaded there; and a CDI device, named for them.
    library_directory: str | None = None
    cdi_device: str | None = None

    def trusts(self, who: frozenset[str]) -> bool:
        """Whether they may say which GPU a pod has."""
        return bool(who & self.trusted)


def require_translatable(names: Iterable[str]) -> None:
    """Raises ImproperlyConfigured where one of them names no format whose pods we rewrite: then none would be."""
    if unknown := sorted(set(names) - TRANSLATABLE):
        raise ImproperlyConfigured(
            f"ADMISSION_TRANSLATE: {', '.join(unknown)} is no format whose pods are rewritten. "
            f"Use {', '.join(sorted(TRANSLATABLE))}, as they are written here, separated by commas."
        )


def decision_annotations(pod: pods.Pod) -> Mapping[str, str]:
    """Its annotations that say which GPUs it has."""
    return {key: value for key, value in pods.annotations(pod).items() if key.startswith(DECISIONS)}
