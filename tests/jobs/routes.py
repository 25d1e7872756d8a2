"""A job behind the routes of jobs."""

from apps.jobs.services.creation import JobSpec, create_job
from apps.jobs.services.files import announce_files
from apps.jobs.services.lifecycle import claim_of_job, run_job
from apps.nodes.models import Node
from apps.quotas.principals import SYSTEM
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Cast, Machine


def make_job(cast: Cast, machine: Machine) -> dict[str, str]:
    """Create a job of acme's, in a pool that allows jobs. Return its paths, by route."""
    change_pool(principal=SYSTEM, pool=cast.pool, jobs=True)
    cast.pool.refresh_from_db()
    Node.objects.filter(pk=machine.node.pk).update(jobs=True)
    spec = claim_of_job(
        tenant=cast.acme, pool=cast.pool, core_request=5, memory_mib=100, time_limit_seconds=None, retries=0
    )
    job = run_job(principal=SYSTEM, claim=spec, command=["true"], environment={}, time_limit_seconds=None, retries=0)
    several = JobSpec(claim=spec, command=["true"], array_size=2, at_once=1)
    array = create_job(principal=SYSTEM, spec=several).array
    assert array is not None
    run_round(cast.pool)
    files = announce_files(principal=SYSTEM, tenant=cast.acme, sha256="0" * 64, size=10)
    of_files = {f"job-files/<uuid:uid>/{verb}": f"job-files/{files.uid}/{verb}" for verb in ("", "pieces/")}
    paths = of_files | {f"jobs/<uuid:uid>/{verb}": f"jobs/{job.uid}/{verb}" for verb in ("", "output/", "stop/")}
    return paths | {f"job-arrays/<uuid:uid>/{verb}": f"job-arrays/{array.uid}/{verb}" for verb in ("", "stop/")}
