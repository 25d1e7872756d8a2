"""Records of this app in the operators' record pages."""

from apps.scheduling.models import Assignment, Claim, Proposal, Reservation, Round, UsedHour
from gpucloud.web.records import register

register(Claim, "uid", "tenant", "pool", "name", "state", "created_at", find=("uid", "name"), narrow=("state",))
register(
    Assignment,
    "uid",
    "claim",
    "gpu",
    "core_limit",
    "memory_mib",
    "state",
    find=("uid", "claim__uid"),
    narrow=("state",),
)
register(Reservation, "uid", "tenant", "pool", "name", "state", "start_at", find=("uid", "name"), narrow=("state",))
register(Round, "at", "pool", "considered", "placed", "duration_us")
register(Proposal, "uid", "claim", "kind", "policy", "state", find=("uid", "claim__uid"), narrow=("state",))
register(UsedHour, "hour", "tenant", "pool", "gpu_model", "gpu_time_ms", find=("tenant__slug",))
