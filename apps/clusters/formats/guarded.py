"""Words of a pod that decide about GPUs: readers believe them, so tenants must not write them.

Each format states its own once, as `GUARDED`; the webhooks, their match conditions and the tests derive theirs from it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from apps.clusters.formats import pods


@dataclass(frozen=True, slots=True)
class Guarded:
    """Words that only schedulers, controllers and administrators may write.

    `annotations` and `labels` are prefixes of keys. `environment` has names of variables, which are believed beside a
    key that begins with `asking`. `asking` has prefixes of labels and annotations in which a pod asks for its share:
    anybody may create a pod with them, and nobody may change them later.
    """

    annotations: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    asking: tuple[str, ...] = ()

    def asks(self, pod: pods.Pod) -> Mapping[str, str]:
        """Return the labels and annotations in which the pod asks."""
        both = {"label": pods.labels(pod), "annotation": pods.annotations(pod)}
        return {
            f"{kind} {key}": value
            for kind, keys in both.items()
            for key, value in keys.items()
            if self.asking and key.startswith(self.asking)
        }

    def variables(self, pod: pods.Pod) -> Mapping[tuple[str, str], str]:
        """Return the believed variables, by container and name; none if the pod does not ask by these words."""
        return dict(_believed(pod, self.environment)) if self.environment and self.asks(pod) else {}


def _believed(pod: pods.Pod, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, str], str]]:
    for container in (*pods.init_containers(pod), *pods.containers(pod)):
        for entry in container.get("env") or []:
            # A value from elsewhere (`valueFrom`) is no less a value in the container.
            if entry.get("name") in names:
                yield (str(container.get("name")), str(entry["name"])), str(entry.get("value"))


# Words of our own.
OWN = Guarded(annotations=(pods.CLAIM, pods.RESIZE_STATUS), labels=(pods.SHAREPOD,))
