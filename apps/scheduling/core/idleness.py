"""Idle claims: from the measurements of a claim and its pool's rule to the step that should be taken. Pure.

A claim is idle if it was measured to be: at least 90 of 100 seconds of the window, on every one of its GPUs, and not
one of them above the noise. Time without measurements is never idleness, so a claim on a silent node is not idle.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from apps.rebalancing.values import Bounds

Reason = Literal["idle", "unused"]
Action = Literal["report", "shrink", "suspend", "release"]
# A window of which less was measured says too little.
MEASURED_PERCENT = 90


@dataclass(frozen=True, slots=True)
class Rule:
    """A pool's rule: the action for idle claims, after how long; and after how long for claims that no program uses."""

    action: Literal["off", "report", "shrink", "suspend", "release"]
    idle_seconds: int
    grace_seconds: int
    unused_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that a claim did on one GPU in a window of `seconds`. `processes`: at its end; None: not known."""

    seconds: int
    measured_seconds: int
    core_percent: float
    throttled_percent: float
    memory_bytes: int
    processes: int | None

    def is_measured(self) -> bool:
        """Return True if enough of the window was measured."""
        return self.measured_seconds * 100 >= self.seconds * MEASURED_PERCENT

    def is_quiet(self, bounds: Bounds) -> bool:
        """Return True if every second of the window was one of an idle program, or of none."""
        at_rest = self.core_percent <= bounds.idle_percent and self.throttled_percent < bounds.throttled_percent
        return self.is_measured() and at_rest

    def is_untouched(self) -> bool:
        """Return True if no program was there: one that computes has memory."""
        return self.memory_bytes == 0 and self.processes == 0


@dataclass(frozen=True, slots=True)
class MeasuredClaim:
    """A claim: a peak for each of its GPUs in either window; none if the rule does not need it or it is not known.

    `opted_out`: its owner wants no rule to act on it. `reserved`: its room is a reservation's, which has rules of its
    own. `lends`: its idle core could be lent. `can_suspend`: its kind and its nodes allow it. `release_at`: the end
    of its notice, if it has one.
    """

    idle: Sequence[Peak] = ()
    unused: Sequence[Peak] = ()
    opted_out: bool = False
    reserved: bool = False
    lends: bool = True
    can_suspend: bool = True
    release_at: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """The step to take: idle for this reason, with this action; or no longer. `why` is the text."""

    reason: Reason | None
    action: Action | None
    why: str
    release_at: int | None = None
    due: bool = False


def decide(seen: MeasuredClaim, rule: Rule, bounds: Bounds, now: int) -> Step:
    """Return the step for one claim. Times are in Unix seconds."""
    reason = _reason(seen, rule, bounds)
    if reason is None:
        return Step(None, None, _awake(seen, rule))
    action = _action(seen, rule, reason)
    why = _why(seen, rule, reason)
    if action not in ("suspend", "release"):
        return Step(reason, action, why)
    release_at = now + rule.grace_seconds if seen.release_at is None else seen.release_at
    return Step(reason, action, why, release_at, due=release_at <= now)


def _reason(seen: MeasuredClaim, rule: Rule, bounds: Bounds) -> Reason | None:
    if (
        rule.unused_seconds
        and seen.unused
        and all(peak.is_quiet(bounds) and peak.is_untouched() for peak in seen.unused)
    ):
        return "unused"
    if rule.action != "off" and seen.idle and all(peak.is_quiet(bounds) for peak in seen.idle):
        return "idle"
    return None


def _action(seen: MeasuredClaim, rule: Rule, reason: Reason) -> Action:
    if seen.reserved:
        return "report"
    if reason == "unused":
        return "release"
    assert rule.action != "off"
    possible = {"shrink": seen.lends, "suspend": seen.can_suspend}.get(rule.action, True)
    if seen.opted_out or not possible:
        return "report"
    return rule.action


def _why(seen: MeasuredClaim, rule: Rule, reason: Reason) -> str:
    if reason == "unused":
        return f"No program has used it in the last {rule.unused_seconds} s."
    most = max(peak.core_percent for peak in seen.idle)
    return f"It used at most {most:.1f} % of a GPU in any second of the last {rule.idle_seconds} s."


def _awake(seen: MeasuredClaim, rule: Rule) -> str:
    if rule.action == "off" and rule.unused_seconds is None:
        return "Its pool no longer has a rule for idle claims."
    peaks = [*seen.idle, *seen.unused]
    if not peaks or not all(peak.is_measured() for peak in peaks):
        return "Too little was measured lately to call it idle."
    return "It is used again."
