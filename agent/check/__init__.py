"""The self-check: what this machine lacks for an agent, and how to fix it.

`agent check` lets the running agent run all checks, or runs them itself if no agent answers; the daemon sends the
findings about the machine in its hello. A check changes nothing that lasts. A check that cannot read what it needs
reports a warning; it never stops the others.
"""
