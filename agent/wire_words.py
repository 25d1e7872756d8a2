"""The words that frames use for states and changes."""

from typing import Literal

# `suspended`: every GPU process of the claim was observed with its GPU memory in host memory, or there is none.
AssignmentState = Literal[
    "in_force", "over_limit", "suspending", "suspended", "resuming", "releasing", "released", "failed"
]

# Changes made behind the agent's back: `agent/drift.py` detects them.
DriftKind = Literal[
    "files-lost", "usage-damaged", "limits-changed", "limits-unreadable", "directory-unknown", "library-other"
]
