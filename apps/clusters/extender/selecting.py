"""GPUs that a pod accepts by model and UUID, which neither its resources nor a node's capacities show."""

from collections.abc import Callable, Mapping

from apps.clusters.core.gpu_admission import View
from apps.clusters.extender.cluster import Extended, Gpus
from apps.clusters.formats.wishes import Selection, selection_of
from apps.clusters.kube.pods import PodState


def restriction(cluster: Extended, pod: PodState) -> Callable[[View], View]:
    """Return the function that leaves nothing free on GPUs that the pod does not accept. Raises NoLedger.

    A GPU that the ledger does not know is not accepted: nobody can say what it is.
    """
    selection = selection_of(pod.annotations)
    if not selection:
        return lambda view: view
    known: Gpus = cluster.promises.gpus() if cluster.promises is not None else {}
    return lambda view: view.without(_refused(selection, view, known.get(view.name, {})))


def _refused(selection: Selection, view: View, known: Mapping[int, tuple[str, str]]) -> list[int]:
    return [index for index in range(view.count) if index not in known or not selection.accepts(*known[index])]
