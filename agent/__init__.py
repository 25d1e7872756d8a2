"""The node daemon: applies the state that the control plane wants on one machine, and reports what it measures.

`python -m agent run` is the daemon; `python -m agent exec` starts a program under a claim's limits; `python -m agent
status` prints the claims and runs that the daemon manages. Nothing here imports the control plane.
"""

VERSION = "0.1.0"
