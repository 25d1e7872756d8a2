"""GPUs on which suspended claims may resume: their own, and others of their node to which it can map their programs."""

from collections import defaultdict
from dataclasses import dataclass

from django.db.models import Q

from apps.nodes.models import Gpu
from apps.scheduling.models import Assignment


@dataclass(frozen=True, slots=True)
class ResumePlaces:
    """GPUs by uuid: those on which the claim was suspended, and all on which it may resume, its own among them."""

    own: frozenset[str] = frozenset()
    all: frozenset[str] = frozenset()


def read_resume_places(claims: Q) -> dict[str, ResumePlaces]:
    """Return the places of the suspended claims selected by this condition on `claim__…`, by uid: two queries.

    A claim may go to other GPUs of its node, model and back end if the node can move programs, and has not refused it
    this one.
    """
    rows = Assignment.objects.filter(claims).live().order_by("pk")
    names = (
        "claim__uid",
        "gpu__uuid",
        "gpu__node",
        "gpu__model",
        "gpu__node__can_move",
        "gpu",
        "return_gpu",
        "gpu__backend",
    )
    found: dict[str, set[str]] = defaultdict(set)
    kinds: dict[str, set[tuple[int, str, str]]] = defaultdict(set)
    bound = set[str]()
    for uid, uuid, node, model, can_move, gpu, return_gpu, backend in rows.values_list(*names):
        found[str(uid)].add(uuid)
        kinds[str(uid)].add((node, model, backend))
        if not can_move or return_gpu == gpu:
            bound.add(str(uid))
    free = {uid: of for uid, (of, *more) in kinds.items() if not more and uid not in bound}
    others: dict[tuple[int, str, str], set[str]] = defaultdict(set)
    if free:
        gpus = Gpu.objects.filter(node__in={node for node, *_ in free.values()}, present=True)
        for node, model, backend, uuid in gpus.values_list("node", "model", "backend", "uuid"):
            others[node, model, backend].add(uuid)
    return {
        uid: ResumePlaces(frozenset(own), frozenset(own | others[free[uid]] if uid in free else own))
        for uid, own in found.items()
    }
