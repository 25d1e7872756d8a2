"""Policy of the admission webhooks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from django.core.exceptions import ImproperlyConfigured

from apps.clusters.formats import FORMATS, gpushare, hami, kubeshare, pods

# Annotations that assign GPUs to a pod. Only schedulers may write them: any other writer could take any GPU.
DECISIONS = (
    *(prefix for format_ in FORMATS for prefix in format_.DECISIONS),
    pods.CLAIM,
    "gpucloud.io/resize-status",
)
# Ours, those of gpu-admission, gpu-manager and KubeShare, and those who may do anything anyway. Not all of kube-system:
# its controllers make pods of templates that tenants write.
TRUSTED = frozenset(
    {
        "system:masters",
        "system:serviceaccounts:gpucloud",
        "system:serviceaccount:kube-system:gpu-admission",
        "system:serviceaccount:kube-system:gpu-manager",
        "system:serviceaccount:kube-system:kubeshare-scheduler",
    }
)
# KubeShare's labels of version 2 only: a SharePod is not a pod.
TRANSLATABLE = frozenset({hami.NAME, gpushare.NAME, kubeshare.NAME})


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings of the webhooks; None leaves a value unchanged. `trusted`: users and groups that may assign GPUs."""

    scheduler_name: str | None = None
    default_core: int | None = None
    default_memory_mib: int | None = None
    trusted: frozenset[str] = TRUSTED
    # Formats whose pods are translated into gpu-manager's resources.
    translated: frozenset[str] = frozenset()
    # A directory on the nodes with the library, mounted into pods and preloaded there; and the CDI device of the pods.
    library_directory: str | None = None
    cdi_device: str | None = None

    def trusts(self, who: frozenset[str]) -> bool:
        """Return True if one of these users or groups may assign GPUs to a pod."""
        return bool(who & self.trusted)


def require_translatable(names: Iterable[str]) -> None:
    """Raise ImproperlyConfigured if a name is not a format whose pods can be translated."""
    if unknown := sorted(set(names) - TRANSLATABLE):
        raise ImproperlyConfigured(
            f"ADMISSION_TRANSLATE: {', '.join(unknown)} is no format whose pods are rewritten. "
            f"Use {', '.join(sorted(TRANSLATABLE))}, as they are written here, separated by commas."
        )


def decision_annotations(pod: pods.Pod) -> Mapping[str, str]:
    """Return the pod's annotations that assign GPUs to it."""
    return {key: value for key, value in pods.annotations(pod).items() if key.startswith(DECISIONS)}
