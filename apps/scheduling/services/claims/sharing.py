"""The sharing policy of a pool's GPUs, changed while claims run."""

from typing import Any

from django.db import transaction

from apps.nodes.models import Node
from apps.quotas.models import Pool
from apps.quotas.principals import Principal
from apps.quotas.services import audit, overcommit
from apps.quotas.services.tenants import require_lending, require_parts, require_suspension
from apps.scheduling.services.claims import lent_memory
from apps.scheduling.services.claims.lifecycle import raise_frames
from gpucloud.api import etags

# The settings that agents need.
SHARING = frozenset(
    {"sharing_policy", "core_ceiling", "parts", "audit_policy", "repair_drift", "backend", "mig", "mps_group", "remote"}
) | {"longest_kernel_ms"}

# Those on which it depends whether memory can be lent.
LENDING = frozenset({"lend_memory", "sharing_policy", "backend"})


@transaction.atomic
def change_pool(*, principal: Principal, pool: Pool, versions: etags.Versions = None, **values: Any) -> Pool:
    """Change a pool's description and how its GPUs are shared.

    The new settings are pushed to every node of the pool. No claim's generation changes, as no claim's own limits do.
    Raises PartsMissing, ShrinkNeedsLending, BackEndCannotSuspend, Overcommitted, MemoryIsLent, PreconditionFailed.
    """
    principal.require_operator()
    # Not FOR UPDATE: claims that are made meanwhile refer to the pool and must not wait.
    pool = Pool.objects.select_for_update(no_key=True).get(pk=pool.pk)
    etags.check(pool.version, versions)
    before = {name: getattr(pool, name) for name in values}
    if before == values:
        return pool
    pool.change(**values)
    require_parts(pool)
    require_lending(pool)
    require_suspension(pool)
    if any(values[name] != before[name] for name in LENDING & values.keys()):
        lent_memory.refuse_end(pool)
    overcommit.refuse(pool, (name for name, ratio in overcommit.RATIOS.items() if ratio in values))
    audit.record(principal, "pool.change", pool, before=before, after=values)
    if any(values[name] != before[name] for name in SHARING & values.keys()):
        raise_frames(set(Node.objects.filter(pool=pool).values_list("pk", flat=True)))
    return pool
