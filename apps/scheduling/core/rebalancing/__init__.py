"""The permanent side of reallocation: from what was measured to changes of requests and limits, each explained.

A policy is a function `(observations, bounds, now) -> changes`; `now` is in Unix seconds. It may be replaced by any
other of that form: what a change may do at all is not its business but that of who carries it out.
"""

from collections.abc import Callable, Mapping, Sequence

from apps.scheduling.core.rebalancing.cron import cron
from apps.scheduling.core.rebalancing.feedback import feedback
from apps.scheduling.core.rebalancing.percentile import percentile
from apps.scheduling.core.rebalancing.values import Bounds, Change, Observation

Policy = Callable[[Sequence[Observation], Bounds, int], list[Change]]

POLICIES: Mapping[str, Policy] = {"feedback": feedback, "percentile": percentile, "cron": cron}


def decide(policy: Policy, observations: Sequence[Observation], bounds: Bounds, now: int) -> list[Change]:
    """The changes of this run, most urgent first: at most `most_changes`, and of each claim one.

    What is given back is owed and is never left out. Of the rest what is wanted goes before what is spared, the larger
    before the smaller.
    """
    changes = sorted(policy(observations, bounds, now), key=lambda change: (change.urgency, -change.size, change.claim))
    first: dict[str, Change] = {}
    for change in changes:
        first.setdefault(change.claim, change)
    owed = [change for change in first.values() if change.kind == "give-back"]
    rest = [change for change in first.values() if change.kind != "give-back"]
    return owed + rest[: max(0, bounds.most_changes - len(owed))]
