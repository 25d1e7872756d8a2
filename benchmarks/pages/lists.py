"""Every list over 10,000 rows: its first page, a saved view and each order, in Django and the database."""

import re
import time
from datetime import timedelta

from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.nodes.models import Gpu, Node
from apps.quotas.models import AuditEvent, Pool, QuotaRequest, ResourceQuota, Tenant, Token, User, Webhook
from apps.scheduling.models import Claim, Reservation
from benchmarks.report import Row, quantile

LISTS = (
    "nodes", "gpus", "claims", "tenants", "tokens", "webhooks", "pools", "reservations", "requests", "audit", "access",
)  # fmt: skip
VIEWS = {"nodes": ["state=problems", "q=99"], "gpus": ["state=problems", "q=long-99"], "claims": ["idle=1", "q=99"]}
SORT = re.compile(r'class="sort" href="\?sort=([a-z]+)"')


def lengthen(count: int) -> None:
    """Add this many rows to every list; a node has eight GPUs."""
    pool = Pool.objects.get(name="default")
    _lengthen_fleet(count, pool)
    _lengthen_tenants(count, pool)
    AuditEvent.objects.bulk_create(
        AuditEvent(actor="user:bench", action="claim.resize", object_type="pool", object_id=str(at))
        for at in range(count)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def _lengthen_fleet(count: int, pool: Pool) -> None:
    now = timezone.now()
    # Pools are few wherever there are many nodes.
    Pool.objects.bulk_create(Pool(name=f"long-{at}") for at in range(min(count, 50)))
    Node.objects.bulk_create(Node(name=f"long-{at}", pool=pool, last_seen_at=now) for at in range(count))
    nodes = Node.objects.filter(name__startswith="long-")
    Gpu.objects.bulk_create(
        Gpu(uuid=f"GPU-long-{node.pk}-{at}", node=node, index=at, model="H100", memory_mib=81920)
        for node in nodes
        for at in range(8)
    )


def _lengthen_tenants(count: int, pool: Pool) -> None:
    Tenant.objects.bulk_create(Tenant(slug=f"long-{at}", name=f"Long {at}") for at in range(count))
    tenant, now = list(Tenant.objects.filter(slug__startswith="long-")), timezone.now()
    ResourceQuota.objects.bulk_create(
        ResourceQuota(tenant=one, resource="core_percent", hard=1000, used=one.pk % 1000) for one in tenant
    )
    Claim.objects.bulk_create(
        Claim(
            tenant=one, pool=pool, name=f"long-{at}", core_request=10, core_limit=10, memory_mib=1024,
            created_by="user:bench", state="queued" if at % 9 else "active",
        )
        for at, one in enumerate(tenant)
    )  # fmt: skip
    Token.objects.bulk_create(
        Token(key=f"{at:016x}", digest="x", name=f"ci-{at}", tenant=one, scopes=["claims:read"])
        for at, one in enumerate(tenant)
    )
    Webhook.objects.bulk_create(
        Webhook(tenant=one, url="https://hooks.example.org/", events=["claim.idle"], created_by="user:bench")
        for one in tenant
    )
    Reservation.objects.bulk_create(
        Reservation(
            tenant=one, pool=pool, name=f"long-{at}", core_request=10, memory_mib=1024, created_by="user:bench",
            start_at=now + timedelta(hours=at), end_at=now + timedelta(hours=at + 1),
        )
        for at, one in enumerate(tenant)
    )  # fmt: skip
    QuotaRequest.objects.bulk_create(
        QuotaRequest(tenant=one, resource="core_percent", amount=10, reason="long", created_by="user:bench")
        for one in tenant
    )


def list_rows(times: int) -> list[Row]:
    """Return a row for each list: its first page, and the slowest of its orders and saved views."""
    client = Client(headers={"host": "127.0.0.1"})
    client.force_login(User.objects.get(username="operator"))
    rows = []
    for name in LISTS:
        path = reverse(name)
        sorts = SORT.findall(client.get(path).content.decode())
        found = {query: _milliseconds(client, f"{path}?{query}", times) for query in _queries(name, sorts)}
        slowest = max(found, key=lambda query: quantile(found[query], 0.5))
        rows.append(
            {
                "list": name, "first page p50 ms": quantile(found[""], 0.5), "max ms": max(found[""]),
                "slowest view": slowest or "the first page", "p50 ms": quantile(found[slowest], 0.5),
                "its max ms": max(found[slowest]),
            }
        )  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def _queries(name: str, sorts: list[str]) -> list[str]:
    return ["", *(f"sort={sign}{sort}" for sort in sorts for sign in ("", "-")), *VIEWS.get(name, [])]


def _milliseconds(client: Client, path: str, times: int) -> list[float]:
    found = []
    for _ in range(times + 1):
        begun = time.perf_counter()
        answer = client.get(path)
        found.append(1000 * (time.perf_counter() - begun))
        assert answer.status_code == 200, (path, answer.status_code)
    return found[1:]
