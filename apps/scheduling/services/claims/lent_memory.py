"""Memory that best-effort claims borrow: who may, and the memory of nodes that is kept for it.

A claim is promised `memory_mib`, for which it is charged and placed as ever. Up to `memory_limit_mib` its programs may
allocate what others of the GPU do not use. All of it may have to leave the GPU at any time, so as much of the node's
memory is taken for it when it is placed, and charged as `host_memory_mib`.
"""

from collections import Counter
from collections.abc import Iterable

from apps.nodes.models import Node
from apps.nodes.models.gpu import WHOLE
from apps.nodes.services import capacity
from apps.quotas.models import Pool
from apps.scheduling.core.values import NOTHING, GpuState, Held, Reason
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.models.claim import PUT_ASIDE
from apps.scheduling.models.share import borrowable_mib
from apps.scheduling.services.charging import borrowing
from gpucloud.errors import Conflict, Invalid

# What cannot leave a GPU must fit in what is promised: a context and its libraries take about half of this.
LEAST_PROMISED_MIB = 1024


class WrongMemoryLimit(Invalid, code="wrong-memory-limit", title="This claim cannot have this memory_limit_mib"):
    """The claim cannot borrow memory, or not this much."""


class NoHostMemoryToLend(Conflict, code="no-host-memory", title="The node lacks memory for what the claim borrows"):
    """The node has not as much memory as the claim may have to move there."""


class MemoryIsLent(Conflict, code="memory-is-lent", title="Claims of the pool borrow memory"):
    """The pool cannot stop lending memory while claims may borrow it."""


def lends_memory(pool: Pool) -> bool:
    """Return True if best-effort claims of the pool may borrow memory."""
    # The arbiter that gives core back in turns is the one that asks for memory.
    return pool.lend_memory and borrowing.lends(pool)


def refuse_end(pool: Pool) -> None:
    """Refuse settings under which the pool lends no memory while claims may borrow it. Raises MemoryIsLent."""
    if lends_memory(pool):
        return
    if number := Claim.objects.live().filter(pool=pool, memory_limit_mib__isnull=False).count():
        raise MemoryIsLent(
            f"{number} claim{'s' * (number != 1)} of pool {pool.name} may borrow memory, which needs lend_memory, the "
            "back end turns and the sharing policy burst or preempt: release them, or set their memory_limit_mib to "
            "null.",
            claims=number,
        )


def refuse_wrong(claim: Claim) -> None:
    """Refuse a memory limit that the claim cannot have. Raises WrongMemoryLimit."""
    if claim.memory_limit_mib is None:
        return
    if why := _find_fault(claim):
        raise WrongMemoryLimit(why, memory_limit_mib=claim.memory_limit_mib, memory_mib=claim.memory_mib)


def _find_fault(claim: Claim) -> str | None:
    limit, promised = claim.memory_limit_mib or 0, claim.memory_mib
    if not claim.best_effort:
        return "Only best-effort claims borrow memory: set class to best-effort, or leave memory_limit_mib out."
    if claim.profile is not None or claim.instance_of is not None:
        return "The memory of a MIG instance is its own, and nobody borrows it: leave memory_limit_mib out."
    if limit <= promised:
        return f"memory_limit_mib {limit} must be above memory_mib {promised}, which is promised to the claim."
    if promised < LEAST_PROMISED_MIB:
        return (
            f"memory_mib {promised} is too little for what cannot leave the GPU, such as contexts: a claim with a "
            f"memory_limit_mib needs {LEAST_PROMISED_MIB} MiB or more."
        )
    if claim.state in PUT_ASIDE:
        return "It is suspended, and programs that borrow memory cannot be: resume it first."
    if claim.schedule:
        return (
            "Programs that borrow memory cannot be suspended: set schedule to an empty text, or leave memory_limit_mib "
            "out."
        )
    if not lends_memory(claim.pool):
        return (
            f"Pool {claim.pool.name} lends no memory: ask an operator to set lend_memory, with the back end turns and "
            "the sharing policy burst or preempt, or leave memory_limit_mib out."
        )
    return None


def take_host_memory(rows: Iterable[Assignment]) -> None:
    """Take the memory of their nodes that these unsaved rows may have to move to. Raises NoHostMemoryToLend.

    The caller has locked the GPUs; nodes come after them in the order of locks.
    """
    needed: Counter[int] = Counter()
    for row in rows:
        more = borrowable_mib(row) - row.held_host_memory_mib
        if row.memory_limit_mib is not None and more > 0:
            needed[row.gpu.node_id] += more
            row.held_host_memory_mib += more
    for node_id, memory_mib in sorted(needed.items()):
        if not capacity.take_host_memory(node_id=node_id, memory_mib=memory_mib):
            node = Node.objects.get(pk=node_id)
            free = free_of(node)
            raise NoHostMemoryToLend(
                f"What the claim borrows must be able to leave for the memory of node {node.name}: {memory_mib} MiB "
                f"are needed, {free} MiB of {node.host_memory_mib} are free there. Lower memory_limit_mib.",
                node=node.name,
                needed_mib=memory_mib,
                free_mib=free,
            )


class HostRoom:
    """The memory that locked nodes have for what claims borrow, while a transaction chooses its claims."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._free = {node.pk: free_of(node) for node in nodes}
        self._takes: Counter[int] = Counter()

    def admits(self, claim: Claim, node_ids: Iterable[int]) -> bool:
        """Return True if there is memory for the claim on these nodes, one for each of its GPUs, and note it."""
        if not (more := borrowable_mib(claim)):
            return True
        needed = Counter({key: number * more for key, number in Counter(node_ids).items()})
        if any(self._takes[key] + amount > self._free[key] for key, amount in needed.items()):
            return False
        self._takes += needed
        return True

    def take(self) -> None:
        """Take what was noted."""
        for key, amount in sorted(self._takes.items()):
            if not capacity.take_host_memory(node_id=key, memory_mib=amount):
                raise AssertionError("A locked node has changed.")


class FreeHostMemory:
    """The memory of a pool's nodes that is free for what claims borrow, read at first use, while a round decides."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._free: dict[str, int] | None = None

    def withheld_from(self, claim: Claim, gpus: Iterable[GpuState]) -> Held:
        """Return what is withheld from the claim: GPUs of nodes that lack memory for what it borrows."""
        needed = claim.gpu_count * borrowable_mib(claim)
        if not needed:
            return NOTHING
        free = self._read()
        return {gpu.uuid: (WHOLE, gpu.memory_mib) for gpu in gpus if free.get(gpu.node, 0) < needed}

    def record_placement(self, claim: Claim, nodes: Iterable[str]) -> None:
        """Count the claim's memory as taken on its nodes, one for each of its GPUs."""
        if more := borrowable_mib(claim):
            for node in nodes:
                self._read()[node] -= more

    def _read(self) -> dict[str, int]:
        if self._free is None:
            self._free = {node.name: free_of(node) for node in Node.objects.filter(pool=self._pool)}
        return self._free


def explain(claim: Claim, withheld: Held) -> Reason:
    """Return the reason of GPUs that are withheld because their nodes lack memory."""
    needed = claim.gpu_count * borrowable_mib(claim)
    number = len(withheld)
    return Reason(
        "no-host-memory",
        number,
        f"{number} GPU{'s' * (number != 1)} of nodes with less than {needed} MiB of free memory: what the claim "
        "borrows must be able to leave for it",
    )


def free_of(node: Node) -> int:
    """Return the memory (MiB) of the node that is free for what claims borrow."""
    return max(0, node.host_memory_mib - node.host_memory_used_mib) if node.can_suspend else 0
