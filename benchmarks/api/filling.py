"""Contents of the database for the API benchmark: tenants with quotas, active claims, and a long history."""

from django.core.management import call_command
from django.db import connection

from apps.quotas.models import Tenant
from apps.quotas.principals import SCOPES, SYSTEM
from apps.quotas.services import quotas, tenants, tokens
from apps.scheduling.models import Assignment
from apps.scheduling.services.claims import lifecycle
from apps.scheduling.services.claims.spec import ClaimSpec
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Machine
from tests.history import add_history

NODES = 16
GPUS_PER_NODE = 8
ACTIVE = 200


def fill(*, clients: int, tenants: int, history: int) -> tuple[list[str], list[str], list[str]]:
    """Fill the database; return tokens by client, slugs by tenant, and uids of the first tenant's active claims."""
    call_command("migrate", verbosity=0)
    rich = [_tenant(f"team-{number}") for number in range(tenants)]
    texts = [_token(number, rich[number % tenants]) for number in range(clients)]
    placed = _placed(rich[0])
    add_history(placed[0], count=history, tenants=rich)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    connection.close()
    return texts, [tenant.slug for tenant in rich], [str(assignment.claim.uid) for assignment in placed]


def _tenant(slug: str) -> Tenant:
    tenant = tenants.create_tenant(principal=SYSTEM, slug=slug, name=slug)
    for resource in ("core_percent", "memory_mib", "vgpus"):
        quotas.create_quota(principal=SYSTEM, tenant=tenant, pool=None, resource=resource, hard=10**12)
    return tenant


def _token(number: int, tenant: Tenant) -> str:
    made = tokens.create(principal=SYSTEM, name=f"client {number}", tenant=tenant, role="member", scopes=SCOPES)
    return made[1]


def _placed(tenant: Tenant) -> list[Assignment]:
    pool = tenants.create_pool(principal=SYSTEM, name="default")
    for number in range(ACTIVE):
        lifecycle.create_claim(
            principal=SYSTEM,
            spec=ClaimSpec(
                tenant=tenant, pool=pool, name=f"live-{number}", core_request=10, core_limit=20, memory_mib=1024
            ),
        )
    # After the claims: the scheduler skips nodes without a heartbeat for ten seconds.
    machines = [Machine(f"node-{number}", pool, gpus=GPUS_PER_NODE) for number in range(NODES)]
    run_round(pool)
    for machine in machines:
        machine.obey()
    return list(Assignment.objects.select_related("claim"))
