"""A database that grows: one node and its claims are made by the models, and copied by statements."""

from collections import defaultdict

from django.db import connection, transaction

from apps.quotas.models import Tenant, User
from apps.quotas.principals import SCOPES, SYSTEM
from apps.quotas.services import tenants, tokens
from apps.scheduling.models import Assignment
from benchmarks.telemetry import filling
from benchmarks.telemetry.filled import Filled, FilledNode

# Tokens and pages are of members of the first so many tenants.
READERS = 64

COLUMNS = """
SELECT column_name FROM information_schema.columns
WHERE table_schema = current_schema() AND table_name = %s AND is_generated = 'NEVER' AND column_name <> 'id'
"""
NODES = "(SELECT * FROM nodes_node ORDER BY id LIMIT 1) base CROSS JOIN generate_series({first}, {last}) AS number"
GPUS = """
nodes_gpu base CROSS JOIN nodes_node made
WHERE base.node_id = (SELECT min(id) FROM nodes_node) AND made.id > {node} ORDER BY made.id, base.index
"""
CLAIMS = """
(SELECT * FROM scheduling_claim ORDER BY id LIMIT 1) base
CROSS JOIN (SELECT id, row_number() OVER (ORDER BY id) AS nth FROM nodes_gpu WHERE id > {gpu}) made
CROSS JOIN generate_series(1, {each}) AS number
ORDER BY made.id
"""
ASSIGNMENTS = """
(SELECT * FROM scheduling_assignment ORDER BY id LIMIT 1) base
CROSS JOIN (SELECT id, split_part(name, '-', 2)::bigint AS gpu FROM scheduling_claim WHERE id > {claim}) made
"""
PAST = """
(SELECT * FROM scheduling_claim ORDER BY id LIMIT 1) base
CROSS JOIN (SELECT at AS nth FROM generate_series(1, {count}) AS at) made
"""
TENANTS = "(SELECT * FROM quotas_tenant ORDER BY id LIMIT 1) base CROSS JOIN generate_series({first}, {last}) AS number"
QUOTAS = """
quotas_resourcequota base CROSS JOIN quotas_tenant made
WHERE base.tenant_id = (SELECT min(id) FROM quotas_tenant) AND made.id > {tenant}
"""
TENANT = "(SELECT array_agg(id ORDER BY id) FROM quotas_tenant)[1 + made.nth % (SELECT count(*) FROM quotas_tenant)]"
NOTHING_CHARGED = dict.fromkeys(
    ("charged_core_percent", "charged_memory_mib", "charged_vgpus", "charged_gpus"), "0"
)  # fmt: skip


def begin(nodes: int) -> tuple[Filled, list[str]]:
    """Fill a new database; return what is in it, and the tokens of a member of each tenant."""
    filled = filling.fill(1)
    grow_tenants(READERS)
    grow_nodes(nodes)
    texts, cookies = _make_readers()
    settle()
    return Filled(known_nodes(), filled.token, filled.cookie, cookies), texts


@transaction.atomic
def _make_readers() -> tuple[list[str], list[str]]:
    """Make a member of each of the first tenants; return their tokens and the cookies of their sessions."""
    texts, cookies = [], []
    for tenant in Tenant.objects.order_by("pk")[:READERS]:
        person = User.objects.create(username=f"reader-{tenant.slug}")
        tenants.set_member(principal=SYSTEM, tenant=tenant, user=person, role="member")
        cookies.append(filling.signed_in(person))
        made = tokens.create(principal=SYSTEM, name="bench", tenant=tenant, role="member", scopes=SCOPES)
        texts.append(made[1])
    return texts, cookies


def grow_tenants(count: int) -> None:
    """Have so many tenants, each with the first one's three quotas."""
    there, last = Tenant.objects.count(), _number("SELECT max(id) FROM quotas_tenant")
    _copy("quotas_tenant", TENANTS.format(first=there, last=count - 1), slug="'team-' || number")
    _copy("quotas_resourcequota", QUOTAS.format(tenant=last), tenant_id="made.id", used="0", borrowed="0")


def grow_nodes(count: int) -> None:
    """Have so many nodes of eight GPUs with two active claims each, which take turns among the tenants."""
    nodes, node, gpu, claim = (
        _number(f"SELECT {what}")
        for what in (
            "count(*) FROM nodes_node", "max(id) FROM nodes_node", "max(id) FROM nodes_gpu",
            "max(id) FROM scheduling_claim",
        )
    )  # fmt: skip
    _copy("nodes_node", NODES.format(first=nodes, last=count - 1), uid="gen_random_uuid()", name="'node-' || number")
    _copy("nodes_gpu", GPUS.format(node=node), uuid="'GPU-' || gen_random_uuid()", node_id="made.id")
    claims = CLAIMS.format(gpu=gpu, each=filling.EACH)
    named = "'c-' || made.id || '-' || number"
    _copy("scheduling_claim", claims, uid="gen_random_uuid()", name=named, tenant_id=TENANT)
    assignments = ASSIGNMENTS.format(claim=claim)
    _copy("scheduling_assignment", assignments, uid="gen_random_uuid()", claim_id="made.id", gpu_id="made.gpu")
    settle()


def add_history(count: int) -> None:
    """Add released claims of all tenants, changed one a second until now."""
    _copy(
        "scheduling_claim", PAST.format(count=count), uid="gen_random_uuid()", name="'past-' || made.nth",
        tenant_id=TENANT, state="'released'", released_at="now()", updated_at="now() - made.nth * interval '1 second'",
        **NOTHING_CHARGED,
    )  # fmt: skip
    settle()


def _copy(table: str, source: str, **changed: str) -> None:
    """Insert a copy of `base` for each row of the source, with changed columns. No trigger runs, no key is checked."""
    with connection.cursor() as cursor:
        cursor.execute(COLUMNS, [table])
        columns = [name for (name,) in cursor.fetchall()]
        names = ", ".join(f'"{name}"' for name in columns)
        values = ", ".join(changed.get(name, f'base."{name}"') for name in columns)
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(f"INSERT INTO {table} ({names}) SELECT {values} FROM {source}")  # noqa: S608 - ours
        cursor.execute("SET session_replication_role = DEFAULT")


def drop_pending() -> None:
    """Remove the claims that were posted: a scheduler would place them."""
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute("DELETE FROM scheduling_claim WHERE state = 'pending'")
        cursor.execute("SET session_replication_role = DEFAULT")
    settle()


def _number(statement: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return int(cursor.fetchone()[0])


def settle() -> None:
    """Run the database's maintenance now: it has grown in seconds, not in months."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("CHECKPOINT")


def sizes() -> dict[str, int]:
    """Return the numbers of what grows."""
    tables = {
        "nodes": "nodes_node", "GPUs": "nodes_gpu", "claims": "scheduling_claim", "tenants": "quotas_tenant",
    }  # fmt: skip
    return {name: _number(f"SELECT count(*) FROM {table}") for name, table in tables.items()}  # noqa: S608 - ours


def known_nodes() -> list[FilledNode]:
    """Return the nodes as their simulated agents know them."""
    of: dict[str, list[tuple[str, str, str, str]]] = defaultdict(list)
    rows = Assignment.objects.filter(state="in_force").order_by("gpu__node", "gpu", "pk")
    for node, *more in rows.values_list("gpu__node__uid", "gpu__node__name", "gpu__uuid", "uid", "claim__uid"):
        name, gpu, uid, claim = map(str, more)
        of[str(node)].append((name, gpu, uid, claim))
    return [
        FilledNode(
            node, found[0][0], list(dict.fromkeys(gpu for _, gpu, _, _ in found)), [uid for _, _, uid, _ in found],
            [claim for _, _, _, claim in found],
        )
        for node, found in of.items()
    ]  # fmt: skip
