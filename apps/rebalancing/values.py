"""The values of policies. Core is percent of one GPU, memory is MiB on one GPU, times are Unix seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# lend, give-back: the part of a guarantee that others may use while it is idle. limit: the ceiling, which charges
# nobody. resize: a change that charges, or cannot be undone at will; it needs its owner's consent.
Kind = Literal["lend", "give-back", "limit", "resize"]
URGENCY = {"give-back": 0, "limit": 1, "resize": 2, "lend": 3}
# A window of which less was measured says too little.
MEASURED_PERCENT = 80


@dataclass(frozen=True, slots=True)
class Forecast:
    """The need of a claim in the present window, in percent of a GPU, and how good such forecasts were.

    `upper_percent` is exceeded with a probability of `risk_percent`; `expected_percent` is the median. `days`: the
    measured days behind it, of the claim itself or of its tenant (`source`). `wrong_percent`: the part of the `judged`
    last forecasts that was exceeded; None without any.
    """

    upper_percent: float
    expected_percent: float
    risk_percent: int
    days: float
    source: Literal["claim", "tenant"] = "claim"
    wrong_percent: float | None = None
    judged: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """One claim, its limits, and its use in the window; among several GPUs the busiest counts.

    `asked_core_limit` is the limit set by its owner, whatever the rebalancer made of it. `core_room` is the least free
    core of its GPUs. `lends`: its pool's sharing policy lets others use idle core and takes it back at once.
    """

    claim: str
    core_request: int
    core_limit: int
    memory_mib: int
    asked_core_limit: int
    lent_core: int = 0
    measured_seconds: int = 0
    core_mean: float = 0.0
    core_p95: float = 0.0
    core_latest: float = 0.0
    throttled_mean: float = 0.0
    throttled_latest: float = 0.0
    memory_p95_mib: int = 0
    memory_most_mib: int = 0
    core_room: int = 0
    lends: bool = True
    changed_at: int | None = None
    forecast: Forecast | None = None


@dataclass(frozen=True, slots=True)
class Hours:
    """A share of the guarantee on these days (Monday is 0), from this minute of the day (UTC) up to that one.

    A window that ends at or before its beginning runs into the next day.
    """

    days: tuple[int, ...]
    from_minute: int
    to_minute: int
    share_percent: int

    def include(self, now: int) -> bool:
        """Return True if `now` lies in these hours."""
        day, minute = now // 86400, now % 86400 // 60
        # 1 January 1970 was a Thursday.
        today, yesterday = (day + 3) % 7, (day + 2) % 7
        if self.from_minute < self.to_minute:
            return today in self.days and self.from_minute <= minute < self.to_minute
        late = today in self.days and minute >= self.from_minute
        return late or (yesterday in self.days and minute < self.to_minute)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds set by a pool. `idle_percent` is below `wake_percent`, so that nothing is both."""

    window_seconds: int = 300
    cool_down_seconds: int = 300
    floor_percent: int = 5
    ceiling_percent: int = 100
    step_percent: int = 20
    margin_percent: int = 20
    idle_percent: int = 2
    wake_percent: int = 5
    throttled_percent: int = 20
    most_changes: int = 50
    # Of a hundred windows of five minutes, the owner may need more than is kept for it in so many.
    forecast_risk_percent: int = 5
    calendar: tuple[Hours, ...] = ()

    def is_rested(self, seen: Observation, now: int) -> bool:
        """Return True if its last change is long enough ago for another."""
        return seen.changed_at is None or now - seen.changed_at >= self.cool_down_seconds

    def is_measured(self, seen: Observation) -> bool:
        """Return True if enough of the window was measured, and none of it before the last change."""
        return seen.measured_seconds * 100 >= self.window_seconds * MEASURED_PERCENT

    def is_awake(self, seen: Observation) -> bool:
        """Return True if it uses its GPUs now."""
        return is_awake(seen.core_latest, seen.throttled_latest, self)


def is_awake(core_percent: float, throttled_percent: float, bounds: Bounds) -> bool:
    """Return True if a second of use is more than the noise of an idle program."""
    return core_percent >= bounds.wake_percent or throttled_percent >= bounds.throttled_percent


@dataclass(frozen=True, slots=True)
class Change:
    """A change from these values to those, with the reason in words and numbers. The names are the claim's fields."""

    claim: str
    kind: Kind
    before: Mapping[str, int]
    after: Mapping[str, int]
    explanation: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def urgency(self) -> int:
        """The order of kinds; smaller goes first."""
        return URGENCY[self.kind]

    @property
    def size(self) -> int:
        """The size of the change, in percent of a GPU or MiB."""
        return sum(abs(value - self.before[name]) for name, value in self.after.items())


def numbers_of(seen: Observation) -> dict[str, float]:
    """Return the measurements, for the record beside the text."""
    return {
        "core_mean_percent": round(seen.core_mean, 1),
        "core_p95_percent": round(seen.core_p95, 1),
        "throttled_percent": round(seen.throttled_mean, 1),
        "memory_most_mib": seen.memory_most_mib,
        "measured_seconds": seen.measured_seconds,
    }


def changing(seen: Observation, kind: Kind, name: str, value: int, why: str) -> Change:
    """Return the change of this field to this value."""
    return Change(seen.claim, kind, {name: getattr(seen, name)}, {name: value}, why, numbers_of(seen))


def lending(seen: Observation, lent: int, why: str) -> Change:
    """Return the change that lends this much of the guarantee, more or less than now."""
    return changing(seen, "lend" if lent > seen.lent_core else "give-back", "lent_core", lent, why)


def giving_back(seen: Observation, bounds: Bounds) -> Change:
    """Return the change that gives back all lent core: its owner uses it."""
    what = (
        f"uses {seen.core_latest:.0f} % of a GPU"
        if seen.core_latest >= bounds.wake_percent
        else f"waits {seen.throttled_latest:.0f} % of the time"
    )
    why = f"It {what} again: the {seen.lent_core} points of core that were lent are its own again."
    return lending(seen, 0, why)
