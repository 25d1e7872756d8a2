"""The bound of the frames that an agent must be able to read."""

from typing import Final

import msgspec

from agent import wire_groups, wire_jobs
from agent.wire import MAX_ASSIGNMENTS, MAX_FRAME_BYTES, Assignment, Carry, Pod, ResourceClaim, Sharing, Ticket

# The longest values: in every word the character whose JSON is longest.
_UID, _WORD = "0" * 8 + "-0000" * 3 + "-" + "0" * 12, "\1" * 200
_GPU, _MOST = f"GPU-{_UID}", 2**63 - 1
LONGEST = Assignment(
    uid=_UID, claim_uid=_UID, tenant=_WORD, gpu_uuid=_GPU, generation=_MOST, core_request=100, core_limit=100,
    memory_bytes=_MOST, secret_digest="0" * 64, claim_name=_WORD, pod_uid=_WORD, present=False, suspended=True,
    carry=Carry(ticket=Ticket(host="\1" * 253, port=65535, fingerprint="0" * 64, secret="0" * 100)),
    sharing=Sharing(policy="weighted", weight=1000, best_effort=True, ceiling=99, parts=16),
    pod=Pod(namespace="\1" * 63, name="\1" * 253, container="\1" * 63),
    resource_claim=ResourceClaim(
        namespace="\1" * 63, name="\1" * 253, uid=_UID, pool="\1" * 253, device="\1" * 63, request=_WORD,
        share_id=_WORD,
    ),
)  # fmt: skip
# So many assignments, groups and runs of jobs, and for each GPU a moment within a frame.
MAX_DESIRED_BYTES: Final = (
    MAX_ASSIGNMENTS * (len(msgspec.json.encode(LONGEST)) + 1)
    + (wire_groups.MAX_BYTES + wire_jobs.MAX_BYTES)
    + MAX_FRAME_BYTES
)
