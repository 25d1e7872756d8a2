"""The node daemon: makes one machine match what the control plane wants, and says what it sees.

`python -m agent run` is the daemon; `python -m agent exec` starts a program under a claim's limits;
`python -m agent status` shows what the daemon holds. Nothing here imports the control plane.
"""

VERSION = "0.1.0"
