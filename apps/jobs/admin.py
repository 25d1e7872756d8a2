"""Records of this app in the operators' record pages."""

from apps.jobs.models import Job
from gpucloud.web.records import register

register(
    Job, "uid", "tenant", "claim", "name", "state", "run_node", "created_at", find=("uid", "name"), narrow=("state",)
)
