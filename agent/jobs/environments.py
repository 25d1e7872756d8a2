"""The environments of programs of jobs."""

from agent import wire
from agent.jobs.containers import Access
from agent.jobs.run_directory import RunDirectory
from agent.launch import execution
from agent.local_wire import Environment

PATH = "/usr/local/bin:/usr/bin:/bin"


def environment_of(run: wire.JobRun, directory: RunDirectory, answer: Environment) -> dict[str, str]:
    """Return the environment of the run's program: the job's own, what the agent adds, what the claim needs."""
    environment = {"PATH": PATH, "LANG": "C.UTF-8"}
    environment |= {name: value for name, value in run.environment.items() if name not in execution.SECRETS}
    environment |= {
        "HOME": str(directory.home),
        "TMPDIR": str(directory.temporary),
        "GPUCLOUD_CLAIM": run.claim_uid,
        "GPUCLOUD_RUN": run.uid,
    }
    execution.apply(answer, environment)
    return environment


def environment_of_container(run: wire.JobRun, directory: RunDirectory, access: Access) -> dict[str, str]:
    """Return the same for a container. PATH and LANG are the image's, and so are the paths of temporary files."""
    environment = {name: value for name, value in run.environment.items() if name not in execution.SECRETS}
    own = {"HOME": str(directory.home), "TMPDIR": "/tmp", "GPUCLOUD_CLAIM": run.claim_uid, "GPUCLOUD_RUN": run.uid}  # noqa: S108
    return environment | own | access.environment
