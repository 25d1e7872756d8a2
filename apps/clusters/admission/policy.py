"""Policy of the admission webhooks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from django.core.exceptions import ImproperlyConfigured

from apps.clusters.formats import FORMATS, OWN, gpushare, hami, kubeshare, pods

# Words that assign GPUs to a pod. Only schedulers may write them: any other writer could take any GPU.
GUARDS = (*(format_.GUARDED for format_ in FORMATS), OWN)
ANNOTATIONS = tuple(prefix for guard in GUARDS for prefix in guard.annotations)
LABELS = tuple(prefix for guard in GUARDS for prefix in guard.labels)
# Ours, those of the formats' schedulers and agents, and those who may do anything anyway. Not all of kube-system: its
# controllers make pods of templates that tenants write.
TRUSTED = frozenset(
    {
        "system:masters",
        "system:serviceaccounts:gpucloud",
        *(f"system:serviceaccount:kube-system:{name}" for format_ in FORMATS for name in format_.WRITERS),
    }
)
# Words of ADMISSION_MIG: `nvidia.com/mig-…` is another device plugin's, ours by DeviceClasses, or nobody's.
LEAVE, SERVE, REFUSE = "leave", "serve", "refuse"
MIG_WORDS = (LEAVE, SERVE, REFUSE)
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
    # True: such a pod is refused if something of its words is lost; False: it gets a warning.
    refuse_unmet: bool = False
    # Memory of every GPU, by which percents of memory are translated; and MiB of one `aliyun.com/gpu-mem`.
    gpu_memory_mib: int | None = None
    gpushare_unit_mib: int = gpushare.GIB
    # A directory on the nodes with the library, mounted into pods and preloaded there; and the CDI device of the pods.
    library_directory: str | None = None
    cdi_device: str | None = None
    # What becomes of pods that ask `nvidia.com/mig-…`.
    mig: str = LEAVE

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


def require_mig_word(word: str) -> None:
    """Raise ImproperlyConfigured if this is no word of ADMISSION_MIG."""
    if word not in MIG_WORDS:
        raise ImproperlyConfigured(f"ADMISSION_MIG is {word!r}: use one of {', '.join(MIG_WORDS)}.")


def decision_annotations(pod: pods.Pod) -> Mapping[str, str]:
    """Return the pod's annotations that assign GPUs to it."""
    return {key: value for key, value in pods.annotations(pod).items() if key.startswith(ANNOTATIONS)}


def decision_labels(pod: pods.Pod) -> Mapping[str, str]:
    """Return the pod's labels that readers believe."""
    return {key: value for key, value in pods.labels(pod).items() if key.startswith(LABELS)}


def decision_variables(pod: pods.Pod) -> Mapping[tuple[str, str], str]:
    """Return the pod's variables that name its GPU, by container and name."""
    return {key: value for guard in GUARDS for key, value in guard.variables(pod).items()}


def decisions(pod: pods.Pod) -> Mapping[str, str]:
    """Return everything in the pod that assigns GPUs to it, by a name for messages."""
    return {
        **{f"Annotation {key}": value for key, value in decision_annotations(pod).items()},
        **{f"Label {key}": value for key, value in decision_labels(pod).items()},
        **{
            f"Variable {name} of container {container}": value
            for (container, name), value in decision_variables(pod).items()
        },
    }


def asking_words(pod: pods.Pod) -> Mapping[str, str]:
    """Return the labels and annotations in which the pod asks and which are fixed once it exists."""
    return {key: value for guard in GUARDS for key, value in guard.asks(pod).items()}
