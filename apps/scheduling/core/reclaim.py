"""Reclaim: the victims that make room for a claim whose tenant lent what it now needs itself.

Victims are taken one by one, in a fixed order, until the waiting claim has both the room in its quotas and the GPUs;
then each is put back, the last first, and stays if the claim fits nevertheless. If it does not fit in the end, there
are no victims. Everything is tried on the fleet and in the books, and undone.

The rule for victims: a tenant's *share* is the largest part of what its cohort lends that it has borrowed, of any
resource, by its weight. A tenant takes only from one that borrows, and only if its own share afterwards is at most the
victim's afterwards, and below the victim's before. Kueue has this as the first of two rules; its second (below the
victim's before is enough) is left out, as claims are indivisible: a lender's small claim ends a large one, the rest is
borrowed, and the large one, which would borrow less than that, may end the small ones in turn, for ever.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.placement import WHOLE
from apps.scheduling.core.values import NOTHING, Held, Placed, Request

# Nodes that are tried by themselves.
MOST_NODES = 32
# Amounts by the key of a cohort's share, or of an organisation's quota: one resource, in one pool or in all.
Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Account:
    """A tenant's quota in one share: its nominal, what of that it keeps from the others, the most it may use."""

    nominal: int
    kept: int = 0
    most: int | None = None
    used: int = 0

    @property
    def borrowed(self) -> int:
        """The amount used above nominal."""
        return max(0, self.used - self.nominal)

    @property
    def taken(self) -> int:
        """The amount taken from the share: all above what is kept."""
        return max(0, self.used - self.kept)


@dataclass(frozen=True, slots=True)
class Holder:
    """A holder of room: a claim, or a group that goes as a whole. `parts`: its holdings of each GPU of the fleet.

    `placed` is false if it only waits, and is charged. `noticed`: it has notice, and goes first. `spare`: its elastic
    group goes on without it, so it goes before all others.
    """

    claim: str
    tenant: str
    amounts: Amounts
    parts: tuple[tuple[str, Request], ...] = ()
    since: float = 0.0
    priority: int = 0
    best_effort: bool = False
    placed: bool = True
    noticed: bool = False
    spare: bool = False


@dataclass(frozen=True, slots=True)
class Claimant:
    """The waiting claim, and what is still to be charged for it."""

    claim: str
    tenant: str
    request: Request
    amounts: Amounts
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ReclaimBounds:
    """The most victims of one decision, the most that are tried, and whose they may be.

    `own_by_priority`: the tenant's own claims of lower priority. `from_others`: claims of tenants that borrow.
    """

    most_victims: int = 16
    most_tried: int = 256
    own_by_priority: bool = False
    from_others: bool = True


USUAL = ReclaimBounds()


@dataclass(frozen=True, slots=True)
class Victims:
    """The claims that go, in the order in which they were chosen (none: it fits as it is), and where it then fits."""

    claims: tuple[Holder, ...]
    gpus: tuple[str, ...]
    # Shares and levels that have no room for it as they are; and True if GPUs have none.
    short: tuple[str, ...]
    no_gpu: bool
    spared: int = 0

    @property
    def explanation(self) -> str:
        """The decision in words and numbers; it names nobody."""
        if not self.claims:
            return "It fits as it is."
        lacks = [*self.short, *(["GPUs"] if self.no_gpu else [])]
        tenants = len({item.tenant for item in self.claims})
        return (
            f"No room in {', '.join(lacks)}: {len(self.claims)} claim{'s' * (len(self.claims) != 1)} of {tenants} "
            f"tenant{'s' * (tenants != 1)} go, then it fits on {len(self.gpus)} "
            f"GPU{'s' * (len(self.gpus) != 1)}; {self.spared} were tried and spared."
        )


@dataclass
class Books:
    """The books of a cohort's shares: what is lent in all, by share; and quotas by tenant and share.

    `levels`: the amount that is left of each quota of an organisation, below zero if it was lowered. Amounts have keys
    of these, too. They only bound: nobody borrows from a level, and no share is counted in one.
    """

    lendable: Mapping[str, int]
    accounts: dict[str, dict[str, Account]]
    weights: Mapping[str, int] = field(default_factory=dict)
    levels: dict[str, int] = field(default_factory=dict)

    def share(self, tenant: str, more: Amounts | None = None) -> float:
        """Return the tenant's share, with so much more. Equal quotients of integers are equal as floats."""
        more, weight = more or {}, self.weights.get(tenant, 1)
        parts = [
            replace(account, used=account.used + more.get(key, 0)).borrowed / (self.lendable[key] * weight)
            for key, account in self.accounts.get(tenant, {}).items()
            if self.lendable.get(key)
        ]
        return max(parts, default=0.0)

    def borrows(self, tenant: str, keys: Iterable[str]) -> bool:
        """Return True if the tenant borrows in one of these shares."""
        accounts = self.accounts.get(tenant, {})
        return any(key in accounts and accounts[key].borrowed for key in keys)

    def within_nominal(self, tenant: str, more: Amounts) -> bool:
        """Return True if, with so much more, the tenant would borrow nowhere."""
        accounts = self.accounts.get(tenant, {})
        own = {key: amount for key, amount in more.items() if amount and key not in self.levels}
        return all(accounts[key].used + amount <= accounts[key].nominal for key, amount in own.items())

    def short(self, tenant: str, more: Amounts) -> tuple[str, ...]:
        """Return the shares and levels in which so much more cannot be charged."""
        return tuple(key for key, amount in sorted(more.items()) if amount and not self._has_room(tenant, key, amount))

    def _has_room(self, tenant: str, key: str, amount: int) -> bool:
        if key in self.levels:
            return amount <= self.levels[key]
        account = self.accounts[tenant][key]
        after = replace(account, used=account.used + amount)
        if account.most is not None and after.used > account.most:
            return False
        more = after.taken - account.taken
        return not more or self.total_taken(key) + more <= self.lendable[key]

    def total_taken(self, key: str) -> int:
        """Return what all tenants together take of the share."""
        return sum(accounts[key].taken for accounts in self.accounts.values() if key in accounts)

    def charge(self, tenant: str, amounts: Amounts, sign: int = 1) -> None:
        """Add the amounts to the tenant's use, or subtract them."""
        accounts = self.accounts.get(tenant, {})
        for key, amount in amounts.items():
            if key in self.levels:
                self.levels[key] -= sign * amount
            elif key in accounts:
                accounts[key] = replace(accounts[key], used=accounts[key].used + sign * amount)


def may_take(books: Books, wanting: Claimant, victim: Holder, bounds: ReclaimBounds) -> bool:
    """Return True if the rules allow this victim, as the books stand at this moment."""
    if victim.tenant == wanting.tenant:
        return bounds.own_by_priority and victim.priority < wanting.priority
    if not bounds.from_others:
        return False
    keys = [key for key in books.accounts.get(wanting.tenant, {}) if victim.amounts.get(key)]
    if not books.borrows(victim.tenant, keys):
        return False
    mine, before = books.share(wanting.tenant, wanting.amounts), books.share(victim.tenant)
    less = {key: -amount for key, amount in victim.amounts.items()}
    return mine <= books.share(victim.tenant, less) and mine < before


class Scene:
    """The holdings on a fleet and in the books; changed for a trial, and back."""

    def __init__(self, fleet: Fleet, books: Books, living: Iterable[Holder], *, held: Held = NOTHING) -> None:
        self.fleet, self.books, self.held = fleet, books, held
        self.living = {item.claim: item for item in living}

    def leave(self, item: Holder) -> None:
        """Remove its holdings."""
        self._move(item, -1)

    def back(self, item: Holder) -> None:
        """Put its holdings back."""
        self._move(item, 1)

    def _move(self, item: Holder, sign: int) -> None:
        for uuid, request in item.parts:
            (self.fleet.take if sign > 0 else self.fleet.give_back)((uuid,), request)
        self.books.charge(item.tenant, item.amounts, sign)

    def settle(self, wanting: Claimant, found: Victims) -> None:
        """Apply a decision for those that follow: the victims are gone, the claim is there."""
        for item in found.claims:
            self.leave(self.living.pop(item.claim))
        self.fleet.take(found.gpus, wanting.request)
        self.books.charge(wanting.tenant, wanting.amounts)

    def place(self, wanting: Claimant) -> Placed | None:
        """Return where the claim fits now, in its quotas and on GPUs; None if nowhere."""
        if self.books.short(wanting.tenant, wanting.amounts):
            return None
        answer = self.fleet.place(wanting.request, held=self.held)
        return answer if isinstance(answer, Placed) else None


def reclaim(scene: Scene, wanting: Claimant, bounds: ReclaimBounds = USUAL) -> Victims | None:
    """Return the victims that make room for this claim; None if no allowed victims would.

    First all victims are tried in order; if that fails, or takes too many, those of each node by themselves.
    """
    short = scene.books.short(wanting.tenant, wanting.amounts)
    no_gpu = not isinstance(scene.fleet.place(wanting.request, held=scene.held), Placed)
    if placed := scene.place(wanting):
        return Victims((), placed.gpus, short, no_gpu)
    ordered = _in_order(scene, wanting, short, no_gpu, bounds)
    found = _try(scene, wanting, ordered, bounds)
    if found is None and no_gpu and _fits_without(scene, wanting, ordered):
        turn = {item.claim: number for number, item in enumerate(ordered)}
        plans = [_try(scene, wanting, some, bounds) for some in _by_node(scene, ordered)]
        # The plan whose last victim comes first in the order.
        found = min(
            (plan for plan in plans if plan),
            key=lambda plan: sorted((turn[item.claim] for item in plan[0]), reverse=True),
            default=None,
        )
    return None if found is None else Victims(tuple(found[0]), found[1], short, no_gpu, found[2])


def _in_order(
    scene: Scene, wanting: Claimant, short: Sequence[str], no_gpu: bool, bounds: ReclaimBounds
) -> list[Holder]:
    """Return the claims whose going could help, in the order in which they are taken.

    Spare members of elastic groups, then claims with notice, those that wait, best effort, lowest priority, latest
    start, and those that leave their GPUs most whole.
    """
    request, gpus = wanting.request, {gpu.uuid: gpu for gpu in scene.fleet.gpus()}

    def helps(item: Holder) -> bool:
        frees = no_gpu and any(gpus[uuid].could_carry(request) for uuid, _ in item.parts)
        return frees or any(item.amounts.get(key) for key in short)

    def turn(item: Holder) -> tuple[Any, ...]:
        others = sum(WHOLE - gpus[uuid].core_free - part.core_request for uuid, part in item.parts)
        worth = (not item.best_effort, item.priority, -item.since, others, item.claim)
        return (not item.spare, item.tenant == wanting.tenant, not item.noticed, item.placed, *worth)

    # Claims of one size, tenant and priority get one answer, and there are few such kinds.
    answers: dict[Any, bool] = {}

    def may(item: Holder) -> bool:
        kind = item.tenant, item.priority, tuple(item.amounts.items())
        if kind not in answers:
            answers[kind] = may_take(scene.books, wanting, item, bounds)
        return answers[kind]

    could = (item for item in scene.living.values() if item.claim != wanting.claim and may(item) and helps(item))
    return sorted(could, key=turn)


def _fits_without(scene: Scene, wanting: Claimant, ordered: Sequence[Holder]) -> bool:
    """Return True if it may fit were all of these gone; else no choice among them helps, and none need be tried."""
    if wanting.request.affinity is not None:
        # One of them may have to stay.
        return True
    for item in ordered:
        scene.leave(item)
    fits = scene.place(wanting) is not None
    for item in ordered:
        scene.back(item)
    return fits


def _by_node(scene: Scene, ordered: Sequence[Holder]) -> Iterator[list[Holder]]:
    """Yield for each node the claims on it, in order, and after them the others, whose quota may be needed too."""
    node_of = {gpu.uuid: gpu.node for gpu in scene.fleet.gpus()}
    nodes = {node_of[uuid]: None for item in ordered for uuid, _ in item.parts}
    for node in list(nodes)[:MOST_NODES]:
        yield sorted(ordered, key=lambda item: all(node_of[uuid] != node for uuid, _ in item.parts))


def _try(
    scene: Scene, wanting: Claimant, ordered: Sequence[Holder], bounds: ReclaimBounds
) -> tuple[list[Holder], tuple[str, ...], int] | None:
    """Return the victims among these, where the claim then fits, and how many were spared; None if it does not fit."""
    gone: list[Holder] = []
    placed = None
    for item in ordered[: bounds.most_tried]:
        if may_take(scene.books, wanting, item, bounds):
            scene.leave(item)
            gone.append(item)
            if placed := scene.place(wanting):
                break
    taken = len(gone)
    if placed:
        placed = _spare(scene, wanting, gone) or placed
    for item in gone:
        scene.back(item)
    if placed is None or len(gone) > bounds.most_victims:
        return None
    return gone, placed.gpus, taken - len(gone)


def _spare(scene: Scene, wanting: Claimant, gone: list[Holder]) -> Placed | None:
    """Put back every victim that need not go, the last first; return where the claim fits in the end."""
    answer = None
    for item in reversed(list(gone)):
        scene.back(item)
        if fits := scene.place(wanting):
            answer = fits
            gone.remove(item)
        else:
            scene.leave(item)
    return answer
