"""The words that frames use for states and changes."""

from typing import Final, Literal

# `suspended`: every GPU process of the claim was observed with its GPU memory in host memory, or there is none.
AssignmentState = Literal[
    "in_force", "over_limit", "suspending", "suspended", "resuming", "releasing", "released", "failed"
]

# Changes made behind the agent's back: `agent/drift.py` detects them.
DriftKind = Literal[
    "files-lost", "usage-damaged", "limits-changed", "limits-unreadable", "directory-unknown", "library-other"
]

# How the claims of a GPU share its compute; docs/api.md describes each.
Policy = Literal["burst", "fixed", "fair", "weighted", "average", "preempt", "native"]

# The mechanism by which several claims use one GPU; docs/backends.md compares them.
BackEnd = Literal["turns", "mps", "native"]
# The trust group of all claims on a GPU; no tenant has this name.
ALL_TENANTS: Final = "*"

# The handling of a GPU process that no limit holds: report it; end it; or report it and take no new claims.
AuditPolicy = Literal["warn", "kill", "fence"]
