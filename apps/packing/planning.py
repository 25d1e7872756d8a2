"""Pairs of claims to put together on a GPU, and pairs to part; pure.

A claim's rate is its launches a second, where it was measured alone on its GPU and beside another. Two claims are put
together if the GPU time that they took alone says that both will keep `keep_percent` of their rates, and parted if the
rates say that one does not. Only pairs are made, and only GPUs of one node and model share.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

WHOLE = 100.0


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, with its free share. `others`: claims on it that are not among those planned for."""

    gpu: str
    node: str
    model: str
    core_free: int
    memory_free_mib: int
    takes: bool = True
    others: int = 0

    def fits(self, claim: "Running") -> bool:
        """Return True if the claim has room here."""
        return self.takes and claim.core_request <= self.core_free and claim.memory_mib <= self.memory_free_mib


@dataclass(frozen=True, slots=True)
class Rates:
    """Means of a window: launches a second, and GPU time in percent."""

    launches: float
    core: float


@dataclass(frozen=True, slots=True)
class Running:
    """A claim on one GPU. `alone`, `now`: None if they are not measured.

    `wants`: it used the GPU in the window, or waited for it; a claim that rests loses nothing to its neighbour.
    `apart`: claims with which it lost too much.
    """

    claim: str
    gpu: str
    core_request: int
    memory_mib: int
    alone: Rates | None = None
    now: Rates | None = None
    wants: bool = True
    may_move: bool = True
    apart: frozenset[str] = frozenset()

    @property
    def keeps(self) -> float | None:
        """The percentage of its rate alone that it has now; None if that is not known, or it does not want the GPU."""
        if self.alone is None or self.now is None or not self.wants or self.alone.launches <= 0:
            return None
        return WHOLE * self.now.launches / self.alone.launches


@dataclass(frozen=True, slots=True)
class Step:
    """One move. `keeps`: the percentage that the one who loses more keeps; predicted to pack, measured to unpack."""

    kind: Literal["pack", "unpack"]
    claim: str
    partner: str
    to_gpu: str
    keeps: float


def predict(one: Rates, other: Rates) -> float:
    """Return the percentage of its rate that each keeps beside the other: all, until the GPU has no time left."""
    return WHOLE * min(1.0, WHOLE / max(one.core + other.core, WHOLE))


def plan(devices: Iterable[Device], running: Sequence[Running], *, keep_percent: int, most_packed: int) -> list[Step]:
    """Return the pairs to part, worst first, and then at most so many to put together.

    Each claim and each GPU is in one step at most, so the steps may be taken in any order.
    """
    table = {device.gpu: device for device in devices}
    on: dict[str, list[Running]] = defaultdict(list)
    for claim in sorted(running, key=lambda claim: claim.claim):
        if claim.gpu in table and not table[claim.gpu].others:
            on[claim.gpu].append(claim)
    empty = [device for device in table.values() if not device.others and not on.get(device.gpu)]
    parted = list(_part(table, on, sorted(empty, key=lambda device: device.gpu), keep_percent))
    singles = [claims[0] for claims in on.values() if len(claims) == 1]
    return parted + list(_pair(table, singles, keep_percent))[:most_packed]


def _part(
    table: Mapping[str, Device], on: Mapping[str, Sequence[Running]], empty: list[Device], keep_percent: int
) -> Iterator[Step]:
    losing: list[tuple[float, str, Sequence[Running]]] = []
    for gpu, pair in on.items():
        known = [claim.keeps for claim in pair if claim.keeps is not None]
        if len(pair) == 2 and known and min(known) < keep_percent:
            losing.append((min(known), gpu, pair))
    for keeps, gpu, pair in sorted(losing, key=lambda one: one[:2]):
        for mover in sorted(pair, key=lambda claim: (not claim.may_move, claim.memory_mib, claim.claim)):
            here = table[gpu]
            to = next((one for one in empty if _are_alike(one, here) and one.fits(mover)), None)
            if mover.may_move and to is not None:
                empty.remove(to)
                (partner,) = (claim for claim in pair if claim is not mover)
                yield Step("unpack", mover.claim, partner.claim, to.gpu, keeps)
                break


def _pair(table: Mapping[str, Device], singles: Sequence[Running], keep_percent: int) -> Iterator[Step]:
    """Pair the claim with the least GPU time with that of the most that still fits, and so on.

    Where only GPU time counts, no other pairing has more pairs; with all rules it has at least half as many.
    """
    measured = [claim for claim in singles if claim.alone is not None and claim.keeps is not None]
    left = sorted(measured, key=lambda claim: (claim.alone.core if claim.alone else 0.0, claim.claim))
    while left:
        one = left.pop(0)
        for other in reversed(left):
            step = _step(table, one, other, keep_percent)
            if step is not None:
                left.remove(other)
                yield step
                break


def _step(table: Mapping[str, Device], one: Running, other: Running, keep_percent: int) -> Step | None:
    """Return the move that puts these two together; None if no rule allows one."""
    if one.alone is None or other.alone is None or other.claim in one.apart or one.claim in other.apart:
        return None
    keeps = predict(one.alone, other.alone)
    if keeps < keep_percent or not _are_alike(table[one.gpu], table[other.gpu]):
        return None
    for mover, stays in sorted(((one, other), (other, one)), key=lambda pair: (pair[0].memory_mib, pair[0].claim)):
        if mover.may_move and table[stays.gpu].fits(mover):
            return Step("pack", mover.claim, stays.claim, stays.gpu, keeps)
    return None


def _are_alike(one: Device, other: Device) -> bool:
    return (one.node, one.model) == (other.node, other.model)
