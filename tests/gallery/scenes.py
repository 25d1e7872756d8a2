"""Scenes of the gallery: pages, their captions, and their objects.

The demo's claims and programs exist already. Objects added here are those of a platform after some weeks: queued
claims, requests, bookings, prices, tokens, a cluster.
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.clusters.kubeconfigs import kubeconfig
from tests.platform import PATIENCE_SECONDS, Platform, until

# Hours of the next day: tenant, purpose, time, number of GPUs and share of each.
BOOKED = (
    ("acme", "robotics-exam", 9, 12, 2, 100),
    ("globex", "index-rebuild", 8, 20, 1, 50),
    ("initech", "paper-deadline", 13, 22, 1, 100),
)


SUSPENDED_SECONDS = 25.0


@dataclass(frozen=True)
class Scene:
    """A page: its pictures' name, its address, and its caption."""

    name: str
    path: str
    words: str


def scenes(platform: Platform) -> list[Scene]:
    """Return every page of the gallery, with an object on it."""
    until(lambda: {one["state"] for one in running(platform)} == {"active"}, what="the demo's claims to be active")
    claim = largest(platform)
    # Groups do not grow while other claims wait.
    group = grow(platform)
    furnish(platform)
    where = claim["assignments"][0]
    quota = platform.granted("GET", f"quotas/?tenant={claim['tenant']}&resource=core_percent")["results"][0]
    return [
        Scene("overview", "/", "Problems that need attention first, then the use of the fleet."),
        Scene("claims", "/claims/", "All claims, with their use against their limits."),
        Scene("claim", f"/claims/{claim['uid']}/", "Live use against limits, and the form that resizes the claim."),
        *of_those_that_wait(platform, group),
        Scene("queue", "/queue/?pool=shared", "Waiting claims, with reasons in numbers and estimates of their start."),
        Scene("reservations", f"/reservations/?week={tomorrow():%Y-%m-%d}", "The week of a pool, a row for each GPU."),
        Scene("requests", "/requests/?state=all", "Requests for more quota, and their answers."),
        Scene("tenants", "/tenants/", "Quota usage by tenant, highest first."),
        Scene("tenant", f"/tenants/{claim['tenant']}/", "One tenant: quotas, GPU-hours, people, tokens."),
        Scene(
            "limits", "/tenants/acme/limits/", "Limits of members, limit ranges of claims, and budgets of GPU-hours."
        ),
        Scene("quota", f"/quotas/{quota['id']}/", "One quota: its form with a preview, its history and its ledger."),
        Scene("reports", "/reports/", "GPU-hours and their cost by tenant, pool and model."),
        Scene("prices", "/prices/", "Prices of a GPU-hour by model, with their first day."),
        Scene("audit", "/audit/", "All changes: person, address, before and after."),
        Scene("nodes", "/nodes/", "GPU nodes, with the allocated part of each."),
        Scene("node", f"/nodes/{where['node']}/", "One machine: the claims on each of its GPUs, and its health."),
        Scene("drain", f"/nodes/{where['node']}/drain/", "What becomes of each claim when a node is drained."),
        Scene("gpu", f"/gpus/{where['gpu_uuid']}/", "The claims on one GPU, with forms that resize them."),
        Scene("pool", "/pools/shared/", "The settings of a pool, each with an explanation."),
        Scene("policies", "/policies/", "The settings of all pools, side by side."),
        Scene("access", "/access/", "Agents and tokens, which act without a person."),
        Scene("clusters", "/clusters/", "Kubernetes clusters whose pods share a pool's GPUs."),
        Scene("integrations", "/integrations/", "Configurations of kube-scheduler and API servers, made for here."),
        Scene("help", "/help/", "The glossary; every underlined word shows its entry."),
    ]


def of_those_that_wait(platform: Platform, group: str) -> list[Scene]:
    """Return the pages of claims that need not hold a GPU all the time."""
    turns = take_turns(platform)
    return [
        Scene("suspended", f"/claims/{put_aside(platform)}/", "A claim that was suspended for a while, and goes on."),
        Scene("rotation", f"/claims/{turns['uid']}/", "A claim that takes turns on a GPU with others."),
        Scene("turns", f"/gpus/{turns['gpu']}/", "A GPU whose claims take turns: the one that is in, and the next."),
        Scene("group", f"/claims/{group}/", "A claim of an elastic group, which grows into free GPUs."),
    ]


def running(platform: Platform, narrowed: str = "") -> list[dict[str, Any]]:
    """Return the claims that are not released."""
    claims: list[dict[str, Any]] = platform.granted("GET", f"claims/{narrowed}")["results"]
    return claims


def take_turns(platform: Platform) -> dict[str, str]:
    """Let one claim more than there are GPUs take turns; return the uid of one that is out, and a GPU of its node."""
    grant = platform.granted
    platform.new_tenant("chemistry", core=1600)
    grant("PATCH", "pools/default/", {"oversubscribe": 2, "slice_seconds": 60}, If_Match="*")
    gpus = [one for one in grant("GET", "gpus/?pool=default")["results"] if not one["core_used"]]
    share = {"tenant": "chemistry", "pool": "default", "core_request": 100, "memory_mib": 4096}
    for number in range(len(gpus) + 1):
        # Ends before the reservations begin.
        grant("POST", "claims/", share | {"name": f"turn-{number + 1}", "time_limit_seconds": 3600})

    def waits() -> dict[str, Any] | None:
        return next((one for one in running(platform, "?tenant=chemistry") if is_out(one)), None)

    out = until(waits, seconds=PATIENCE_SECONDS, what="a claim to be out")
    return {"uid": out["uid"], "gpu": out["assignments"][0]["gpu_uuid"] if out["assignments"] else gpus[0]["uuid"]}


def is_out(claim: dict[str, Any]) -> bool:
    """Return True if the claim takes part in a rotation and waits for its turn."""
    return bool(claim["rotation"] and claim["rotation"]["place"])


def grow(platform: Platform) -> str:
    """Create an elastic group in the shared pool that has grown; return its first claim's uid."""
    share = {"tenant": "acme", "pool": "shared", "core_request": 10, "memory_mib": 512}
    group = {"group": "sweep", "group_size": 1, "group_most": 3}
    first = platform.granted("POST", "claims/", share | group | {"name": "sweep"})
    uid = str(first["uid"])

    def has_grown() -> bool:
        members = [one for one in running(platform, "?tenant=acme&state=active") if one["group_uid"] == uid]
        return len(members) > 1

    until(has_grown, seconds=PATIENCE_SECONDS, what="the group to grow")
    return uid


def put_aside(platform: Platform) -> str:
    """Suspend a claim with a running program for a while; return its uid."""
    claims = running(platform, "?state=active&pool=shared")
    alone = [one for one in claims if not one["group"]]
    uid = str(min(alone, key=lambda one: one["core_limit"])["uid"])
    # Its chart begins before.
    time.sleep(SUSPENDED_SECONDS)
    platform.granted("POST", f"claims/{uid}/suspend/?wait={PATIENCE_SECONDS:.0f}")
    time.sleep(SUSPENDED_SECONDS)
    platform.granted("POST", f"claims/{uid}/resume/?wait={PATIENCE_SECONDS:.0f}")
    return uid


def largest(platform: Platform) -> dict[str, Any]:
    """Return the active claim of the demo with the highest limit."""
    return max(running(platform, "?state=active&pool=shared"), key=lambda one: one["core_limit"])


def tomorrow() -> datetime:
    """Return tomorrow's midnight, UTC."""
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)


def furnish(platform: Platform) -> None:
    """Create a queued claim, requests, bookings, prices, a token, a cluster, a quota with a history."""
    grant = platform.granted
    platform.new_tenant("physics")
    wide = {"tenant": "physics", "name": "four-whole-gpus", "core_request": 100, "gpu_count": 4, "memory_mib": 4096}
    grant("POST", "claims/", wide | {"pool": "shared"})
    model = grant("GET", "gpus/")["results"][0]["model"]
    for day, price in (("2026-01-01", "2.10"), ("2026-07-01", "1.85")):
        grant("POST", "prices/", {"gpu_model": model, "valid_from": day, "per_gpu_hour": price})
    grant("POST", "tokens/", {"name": "nightly-training", "tenant": "acme", "role": "member"})
    for hard in (240, 300):
        quota = grant("GET", "quotas/?tenant=acme&resource=core_percent")["results"][0]
        grant("PATCH", f"quotas/{quota['id']}/", {"hard": hard}, If_Match="*")
    request(
        platform, tenant="physics", resource="core_percent", amount=200, reason="The lab course of the winter term."
    )
    answered = request(platform, tenant="globex", resource="memory_mib", amount=49152, reason="A larger index.")
    grant(
        "POST", f"quota-requests/{answered}/counter/", {"amount": 24576, "words": "Half now; more once sim-3 is here."}
    )
    grant("POST", "member-limits/", {"tenant": "acme", "resource": "core_percent", "hard": 200})
    grant("POST", "limit-ranges/", {"tenant": "acme", "field": "memory_mib", "minimum": 256, "maximum": 16384})
    grant("POST", "budgets/", {"tenant": "acme", "period": "month", "gpu_hours": "500"})
    book(platform)
    server = kubeconfig(server="https://kube.example:6443")
    grant("POST", "clusters/", {"name": "prod", "pool": "shared", "kubeconfig": server})
    grant("POST", "clusters/prod/namespaces/", {"namespace": "research", "tenant": "physics"})


def request(platform: Platform, **asked: Any) -> str:
    """Create a quota request; return its uid."""
    return str(platform.granted("POST", "quota-requests/", asked)["uid"])


def book(platform: Platform) -> None:
    """Book the next day of pool `default`."""
    day = tomorrow()
    for tenant, name, begin, end, gpus, core in BOOKED:
        times = {
            "start_at": (day + timedelta(hours=begin)).isoformat(),
            "end_at": (day + timedelta(hours=end)).isoformat(),
        }
        share = {"gpu_count": gpus, "core_request": core, "memory_mib": 4096}
        platform.granted("POST", "reservations/", {"tenant": tenant, "name": name, "pool": "default", **share, **times})
