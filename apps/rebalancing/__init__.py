"""The permanent part of reallocation: from measurements to changes of requests and limits, each with an explanation.

A policy is a function `(observations, bounds, now) -> changes`; `now` is in Unix seconds. It may be replaced by any
other of that form: the caller that applies changes decides which are allowed.
"""

from collections.abc import Callable, Mapping, Sequence

from apps.rebalancing.cron import cron
from apps.rebalancing.feedback import feedback
from apps.rebalancing.forecast import forecast
from apps.rebalancing.percentile import percentile
from apps.rebalancing.values import Bounds, Change, Observation

Policy = Callable[[Sequence[Observation], Bounds, int], list[Change]]

POLICIES: Mapping[str, Policy] = {"feedback": feedback, "percentile": percentile, "cron": cron, "forecast": forecast}


def decide(policy: Policy, observations: Sequence[Observation], bounds: Bounds, now: int) -> list[Change]:
    """Return the changes of this run, most urgent first: at most `most_changes`, and one of each claim.

    Core to give back is owed and never left out. Among the rest, requested changes go before savings, larger before
    smaller.
    """
    changes = sorted(policy(observations, bounds, now), key=lambda change: (change.urgency, -change.size, change.claim))
    first: dict[str, Change] = {}
    for change in changes:
        first.setdefault(change.claim, change)
    owed = [change for change in first.values() if change.kind == "give-back"]
    rest = [change for change in first.values() if change.kind != "give-back"]
    return owed + rest[: max(0, bounds.most_changes - len(owed))]
