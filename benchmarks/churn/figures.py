"""Figures of a run."""

from collections import defaultdict

from benchmarks.churn.replay import Course, jain
from benchmarks.report import quantile

HOUR = 3600


def figures(course: Course) -> dict[str, float]:
    """Return waits in minutes of all claims and of claims for several GPUs, and GPU-hours while claims arrived."""
    load = course.load
    waits = {claim.number: (course.started[claim.number] - claim.at) / 60 for claim in load.arrivals}
    several = [waits[claim.number] for claim in load.arrivals if claim.request.gpu_count > 1]
    wanted: dict[str, float] = defaultdict(float)
    served: dict[str, float] = defaultdict(float)
    for claim in load.arrivals:
        gpus = claim.request.gpu_count * claim.request.core_request / 100 / HOUR
        for sums, begun in ((wanted, claim.at), (served, course.started[claim.number])):
            sums[claim.tenant] += gpus * max(0.0, min(load.seconds, begun + claim.runs_seconds) - begun)
    full = 100 * len(load.gpus)
    every = list(waits.values())
    return {
        "claims": len(every),
        "GPUs": len(load.gpus),
        "wait, mean": sum(every) / len(every),
        "wait, p50": quantile(every, 0.5),
        "wait, p90": quantile(every, 0.9),
        "wait, p99": quantile(every, 0.99),
        "several GPUs, p90": quantile(several, 0.9),
        "several GPUs, p99": quantile(several, 0.99),
        "GPU-hours served": sum(served.values()),
        "of wanted %": 100 * sum(served.values()) / sum(wanted.values()),
        "utilisation %": 100 * course.held / load.seconds / full,
        "while some wait %": 100 * course.held_under_pressure / (course.under_pressure or 1) / full,
        "Jain served/wanted": jain(served[tenant] / wanted[tenant] for tenant in wanted if wanted[tenant]),
        "least served/wanted %": 100 * min(served[tenant] / wanted[tenant] for tenant in wanted if wanted[tenant]),
        "Jain of who wait": course.even / course.several_wait if course.several_wait else 1.0,
    }
