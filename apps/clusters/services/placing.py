"""Assignment of claims to given GPUs."""

from collections.abc import Iterable, Sequence

from apps.nodes.models import Gpu, Node
from apps.quotas.models import Pool
from apps.scheduling.models import Claim
from apps.scheduling.services.cycles import commits
from gpucloud.errors import Conflict


class NotAsItRuns(Conflict, code="not-as-it-runs", title="Cannot be taken over"):
    """The pod's shares cannot be recorded in the ledger as they are."""


def place_on(claim: Claim, gpus: Sequence[Gpu], *, start: int | None = None) -> None:
    """Assign the new claim, in the transaction that created it. Raises NotAsItRuns and what a commit raises.

    `start`: the first memory slice of a claim with a MIG instance, if it is given.
    """
    pick = commits.Pick(claim, tuple(sorted(gpu.pk for gpu in gpus)), start=start)
    outcome = commits.commit([pick], fence=lambda: None)
    for _, error in outcome.failed:
        raise error
    for _, refused in outcome.refused:
        raise NotAsItRuns("; ".join(reason.detail for reason in refused.reasons))
    if outcome.lost and start is not None:
        where = f"GPU {gpus[0].index} has no room for an instance of {claim.profile} at slice {start}, or is not ready."
        raise NotAsItRuns(where)
    if outcome.lost:
        raise no_room((gpu.index, gpu.core_free, gpu.memory_free_mib) for gpu in gpus)


def no_room(free: Iterable[tuple[int, int, int]]) -> NotAsItRuns:
    """Return the refusal for GPUs without room; `free` has index, percent and MiB of each."""
    said = "; ".join(f"GPU {index}: {core} percent, {memory_mib} MiB" for index, core, memory_mib in free)
    return NotAsItRuns(f"Its GPUs have no room in the ledger, or are not ready. Free are {said}.")


def node_of(pool: Pool, name: str) -> Node:
    """Return the pool's node of this Kubernetes name. Raises NotAsItRuns."""
    nodes = Node.objects.filter(pool=pool)
    found = nodes.filter(kubernetes_node=name).first() or nodes.filter(name=name, kubernetes_node="").first()
    if found is None:
        raise NotAsItRuns(f"No node of pool {pool.name} is {name}: enrol its agent first.")
    return found
