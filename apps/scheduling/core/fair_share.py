"""Fair share that remembers: what a tenant held in the past counts in the order of the queue, the less the older it is.

A tenant's past is the average of what it held of the pool, in which a moment counts half as much as one that is a
half-life younger. A constant amount `g` from moment `a` to moment `b` adds, at the moment `t`,

    g · (2^(-(t - b) / h) - 2^(-(t - a) / h))

which is the integral of its weight, so that parts of an interval add up to the whole, and whoever held `g` for ever has
the average `g`. It is Slurm's decayed usage (https://slurm.schedmd.com/classic_fair_share.html) in the limit of short
periods, divided by h / ln 2: an amount of the pool instead of processor-seconds, which adds to what is held now.

The queue's order is by (past + now) / weight. Where nobody holds anything, it is the order of Slurm's fair-share factor
2^(-U / S); what is held now counts in full, so that a tenant without a past cannot take everything at once. The portion
that KAI-Scheduler gives at its default k = 1, 2 W - U of the capacity, has the same (portion + U) / W for all.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Averages are compared as multiples of 1/1024: exact as floats, also when whole amounts are added. Then a quotient by
# integers is rounded once, so that equal shares compare as equal.
STEPS = 1024


@dataclass(frozen=True, slots=True)
class Past:
    """The amounts that a tenant held of a pool on average, at one moment."""

    core_percent: float = 0.0
    memory_mib: float = 0.0

    def rounded(self) -> "Past":
        """Return the amounts as the queue compares them."""
        return Past(round(self.core_percent * STEPS) / STEPS, round(self.memory_mib * STEPS) / STEPS)

    def after(self, seconds: float, *, half_life: float, core_percent: float = 0, memory_mib: float = 0) -> "Past":
        """Return the average after this time, in which these amounts were held."""
        kept = decay(seconds, half_life)
        return Past(
            self.core_percent * kept + core_percent * (1 - kept), self.memory_mib * kept + memory_mib * (1 - kept)
        )


NO_PAST = Past()


def decay(seconds: float, half_life: float) -> float:
    """Return the factor to which an amount decays in this time. `half_life` is in seconds."""
    return float(2.0 ** (-seconds / half_life))


def weight_of(begin: float, end: float, *, at: float, half_life: float) -> float:
    """Return the weight of an interval in the average at a moment; the weight of all the past is 1. Unix seconds."""
    return decay(at - end, half_life) - decay(at - begin, half_life)


@dataclass(frozen=True, slots=True)
class Standing:
    """A tenant's share and its usage, normalized as Slurm does, and the factor that follows."""

    share: float
    usage: float

    @property
    def factor(self) -> float:
        """Slurm's fair-share factor: 1 without usage, 0.5 where usage is the share, towards 0 above."""
        return fair_share_factor(self.usage, self.share)


def fair_share_factor(usage: float, share: float, *, dampening: float = 1) -> float:
    """Return 2^(-usage / share / dampening), as Slurm; without a share it is 0."""
    return float(2.0 ** (-usage / share / dampening)) if share > 0 else 0.0


def standings(usages: Mapping[str, float], weights: Mapping[str, int]) -> dict[str, Standing]:
    """Return the standing of each of these tenants among them. A tenant without a weight has 1."""
    tenants = sorted({*usages, *weights})
    shares, total = _parts({name: weights.get(name, 1) for name in tenants}), _parts(dict(usages))
    return {name: Standing(shares[name], total.get(name, 0.0)) for name in tenants}


def _parts(amounts: Mapping[str, float]) -> dict[str, float]:
    total = _sum(amounts.values())
    return {name: amount / total if total else 0.0 for name, amount in amounts.items()}


def _sum(amounts: Iterable[float]) -> float:
    return float(sum(sorted(amounts)))
