"""Division of one GPU's compute among its claims, as the arbiter must do it: water-filling by policy.

Shares are hundredths of a percent of the GPU: 10,000 is all of it. For claim i with guarantee g, limit L, demand d and
weight w, and a ceiling C for all together:

    lo = min(g, L, d)    hi = min(L, d)
    a  = lo + min(w * t, hi - lo), with the level t at which the sum of a is min(C, sum of hi)
    a  = min(lo, t * g)            where the guarantees in demand alone pass the ceiling

Each a is rounded down, so up to a hundredth of a percent a claim stays unused. Claims of tier 1 share, by the same
rule, what tier 0 leaves. The arbiter on the nodes (libvcuda/arbiter/share.c) computes the same numbers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction

WHOLE = 10_000


class Policy(IntEnum):
    """Sharing policies; the numbers are those of the limits page."""

    BURST = 0
    FIXED = 1
    FAIR = 2
    WEIGHTED = 3
    AVERAGE = 4
    PREEMPT = 5
    NATIVE = 6


@dataclass(frozen=True)
class Terms:
    """A claim's limits under its policy, in hundredths of a percent."""

    guarantee: int
    limit: int
    weight: int = 1
    tier: int = 0
    demand: int = WHOLE

    @property
    def high(self) -> int:
        """The most that it may get and wants."""
        return min(self.limit, self.demand)

    @property
    def low(self) -> int:
        """Return the least that it gets before anyone gets more."""
        return min(self.guarantee, self.high)


def terms(
    policy: Policy,
    *,
    core_request: int,
    core_limit: int,
    weight: int = 1,
    parts: int = 1,
    best_effort: bool = False,
) -> Terms:
    """The terms of a claim that demands everything; request and limit in percent.

    A limit of 0 is a pause in every policy.
    """
    limit = min(core_limit, 100) * 100
    guarantee = min(core_request * 100, limit)
    weight = weight or 1
    if core_limit == 0:
        return Terms(guarantee, 0, weight)
    match policy:
        case Policy.FIXED:
            return Terms(guarantee, guarantee, weight)
        case Policy.FAIR:
            return Terms(0, WHOLE)
        case Policy.WEIGHTED:
            return Terms(0, WHOLE, weight)
        case Policy.AVERAGE:
            part = WHOLE // min(parts or 1, WHOLE)
            return Terms(part, part, weight)
        case Policy.PREEMPT if best_effort:
            return Terms(0, WHOLE, weight, tier=1)
        case _:
            return Terms(guarantee, limit, weight)


def share(claims: Sequence[Terms], ceiling: int = WHOLE) -> list[int]:
    """Return the share of each claim, in the claims' order; the order changes nothing."""
    shares = [0] * len(claims)
    left = min(ceiling, WHOLE)
    for tier in (0, 1):
        members = [i for i, claim in enumerate(claims) if claim.tier == tier]
        for i, part in zip(members, _fill([claims[i] for i in members], left), strict=True):
            shares[i] = part
        left -= sum(shares[i] for i in members)
    return shares


def _fill(claims: Sequence[Terms], amount: int) -> list[int]:
    guaranteed = sum(claim.low for claim in claims)
    if guaranteed > amount:
        level = _level([(claim.low, claim.guarantee) for claim in claims], amount)
        return [min(claim.low, int(level * claim.guarantee)) for claim in claims]
    level = _level([(claim.high - claim.low, claim.weight) for claim in claims], amount - guaranteed)
    return [claim.low + min(int(level * claim.weight), claim.high - claim.low) for claim in claims]


def _level(vessels: Iterable[tuple[int, int]], amount: int) -> Fraction:
    """The level t at which the sum of min(room, weight * t) is the amount, or at which all are full."""
    open_vessels = sorted((Fraction(room, weight), room, weight) for room, weight in vessels if room)
    weights = sum(weight for _, _, weight in open_vessels)
    for full_at, room, weight in open_vessels:
        if full_at * weights > amount:
            return Fraction(amount, weights)
        amount -= room
        weights -= weight
    return open_vessels[-1][0] if open_vessels else Fraction(0)
