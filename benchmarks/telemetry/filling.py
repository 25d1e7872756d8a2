"""Contents of the database for the telemetry benchmark: enrolled nodes, their GPUs, and active claims on each."""

import hashlib
import uuid
from collections import defaultdict
from typing import Any

from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.utils import timezone

from apps.nodes.models import Gpu, Node
from apps.nodes.services.telemetry import partitions
from apps.quotas.models import Pool, Tenant, User
from apps.quotas.principals import SCOPES, SYSTEM
from apps.quotas.services import quotas, tenants, tokens
from apps.quotas.services.tokens import keyed_digest
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.models.share import amounts as amounts_of
from benchmarks.telemetry.filled import SECRET, Filled, FilledNode

GPUS, EACH = 8, 2
TENANTS = 4


def fill(nodes: int) -> Filled:
    """Create nodes of 8 GPUs with two claims each."""
    call_command("migrate", verbosity=0)
    partitions.keep_up()
    pool = tenants.create_pool(principal=SYSTEM, name="default")
    rich = [tenants.create_tenant(principal=SYSTEM, slug=f"team-{number}", name="T") for number in range(TENANTS)]
    for tenant in rich:
        for resource in ("core_percent", "memory_mib", "vgpus"):
            quotas.create_quota(principal=SYSTEM, tenant=tenant, pool=None, resource=resource, hard=10**12)
    made = _nodes(pool, nodes)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    operator = User.objects.create(username="operator", is_operator=True)
    token = tokens.create(principal=SYSTEM, name="bench", tenant=None, role="admin", user=operator, scopes=SCOPES)[1]
    cookies = []
    for tenant in rich:
        person = User.objects.create(username=tenant.slug)
        tenants.set_member(principal=SYSTEM, tenant=tenant, user=person, role="viewer")
        cookies.append(signed_in(person))
    return Filled(_known(made, rich, pool), token, signed_in(operator), cookies)


def signed_in(user: User) -> str:
    """Sign in; return the session's cookie."""
    client = Client()
    client.force_login(user)
    return client.cookies["sessionid"].value


def _nodes(pool: Pool, count: int) -> list[Node]:
    digest = keyed_digest(hashlib.sha256(SECRET.encode()).hexdigest())
    now = timezone.now()
    nodes = Node.objects.bulk_create(
        Node(name=f"node-{number}", pool=pool, key_digest=digest, enrolled_at=now) for number in range(count)
    )
    Gpu.objects.bulk_create(
        Gpu(
            uuid=f"GPU-{uuid.uuid4()}", node=node, index=index, model="NVIDIA A100", memory_mib=80 * 1024, core_used=60,
            memory_used_mib=32 * 1024,
        )
        for node in nodes
        for index in range(GPUS)
    )  # fmt: skip
    return nodes


def _known(nodes: list[Node], rich: list[Tenant], pool: Pool) -> list[FilledNode]:
    now = timezone.now()
    gpus = [gpu for gpu in Gpu.objects.order_by("node_id", "index") for _ in range(EACH)]
    claims = [_claim(rich[number % TENANTS], pool, number, now) for number in range(len(gpus))]
    Claim.objects.bulk_create(claims, batch_size=2000)
    rows = [
        Assignment(
            claim=claim, gpu=gpu, core_request=30, core_limit=50, memory_mib=16 * 1024, held_core=30,
            held_memory_mib=16 * 1024, observed_generation=1, state="in_force", in_force_at=now,
        )
        for claim, gpu in zip(claims, gpus, strict=True)
    ]  # fmt: skip
    Assignment.objects.bulk_create(rows, batch_size=2000)
    of: dict[int, list[Assignment]] = defaultdict(list)
    for row in rows:
        of[row.gpu.node_id].append(row)
    return [
        FilledNode(
            str(node.uid), node.name, [row.gpu.uuid for row in of[node.pk][::EACH]],
            [str(row.uid) for row in of[node.pk]], [str(row.claim.uid) for row in of[node.pk]],
        )
        for node in nodes
    ]  # fmt: skip


def _claim(tenant: Tenant, pool: Pool, number: int, now: Any) -> Claim:
    claim = Claim(
        tenant=tenant, pool=pool, name=f"c-{number}", core_request=30, core_limit=50, memory_mib=16 * 1024,
        created_by="bench", state="active", assigned_at=now,
        timeline=[["pending", now.isoformat()]],
    )  # fmt: skip
    for resource, amount in amounts_of(gpu_count=1, core=30, memory_mib=16 * 1024).items():
        setattr(claim, f"charged_{resource}", amount)
    return claim


def count_lost(agents: list[tuple[str, int, int]]) -> int:
    """Count frames that are not stored, of those acknowledged to each node (by uid, from a number, to the last)."""
    keys = {str(uid): pk for uid, pk in Node.objects.values_list("uid", "pk")}
    missing = 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT node_id, seq FROM nodes_usageframe")
        stored: dict[int, set[int]] = defaultdict(set)
        for node_id, seq in cursor.fetchall():
            stored[node_id].add(seq)
    for uid, first, last in agents:
        missing += sum(seq not in stored[keys[uid]] for seq in range(first + 1, last + 1))
    return missing


def lag_of(node_uid: str) -> int:
    """Return how many frames the node's stored observation is behind its desired state."""
    frame, observed = Node.objects.values_list("frame", "observed_frame").get(uid=node_uid)
    return int(frame - observed)


def is_behind(nodes: int) -> bool:
    """Return True if one of the first nodes has not reported its newest frame as in force."""
    rows = Node.objects.order_by("pk").values_list("frame", "observed_frame")[:nodes]
    return any(frame != observed for frame, observed in rows)
