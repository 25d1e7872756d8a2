"""Scenes of the gallery: pages, their captions, and their objects.

The demo's claims and programs exist already. Objects added here are those of a platform after some weeks: queued
claims, requests, bookings, prices, tokens, a cluster.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.clusters.kubeconfigs import kubeconfig
from tests.platform import Platform, until

# Hours of the next day: tenant, purpose, time, number of GPUs and share of each.
BOOKED = (
    ("acme", "robotics-exam", 9, 12, 2, 100),
    ("globex", "index-rebuild", 8, 20, 1, 50),
    ("initech", "paper-deadline", 13, 22, 1, 100),
)


@dataclass(frozen=True)
class Scene:
    """A page: its pictures' name, its address, and its caption."""

    name: str
    path: str
    words: str


def scenes(platform: Platform) -> list[Scene]:
    """Return every page of the gallery, with an object on it."""
    until(lambda: {one["state"] for one in running(platform)} == {"active"}, what="the demo's claims to be active")
    furnish(platform)
    claim = max(running(platform, "?state=active"), key=lambda one: one["core_limit"])
    where = claim["assignments"][0]
    quota = platform.granted("GET", f"quotas/?tenant={claim['tenant']}&resource=core_percent")["results"][0]
    return [
        Scene("overview", "/", "Problems that need attention first, then the use of the fleet."),
        Scene("claims", "/claims/", "All claims, with their use against their limits."),
        Scene("claim", f"/claims/{claim['uid']}/", "Live use against limits, and the form that resizes the claim."),
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
        Scene("gpu", f"/gpus/{where['gpu_uuid']}/", "The claims on one GPU, with forms that resize them."),
        Scene("pool", "/pools/shared/", "The settings of a pool, each with an explanation."),
        Scene("policies", "/policies/", "The settings of all pools, side by side."),
        Scene("access", "/access/", "Agents and tokens, which act without a person."),
        Scene("clusters", "/clusters/", "Kubernetes clusters whose pods share a pool's GPUs."),
        Scene("integrations", "/integrations/", "Configurations of kube-scheduler and API servers, made for here."),
        Scene("help", "/help/", "The glossary; every underlined word shows its entry."),
    ]


def running(platform: Platform, narrowed: str = "") -> list[dict[str, Any]]:
    """Return the claims that are not released."""
    claims: list[dict[str, Any]] = platform.granted("GET", f"claims/{narrowed}")["results"]
    return claims


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
