"""Records of this app in the operators' record pages."""

from apps.jobs.models import Job, JobArray, JobFiles
from gpucloud.web.records import register

register(
    Job, "uid", "tenant", "claim", "name", "state", "run_node", "created_at", find=("uid", "name"), narrow=("state",)
)
register(JobArray, "uid", "tenant", "name", "size", "created_at", find=("uid", "name"))
register(JobFiles, "uid", "tenant", "sha256", "size", "complete", "created_at", find=("uid", "sha256"))
