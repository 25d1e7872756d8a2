"""The self-check: what this machine lacks for an agent, in words, with what to do about it.

`agent check` lets the running agent do all of it, or does it itself where none runs; the daemon sends what it finds of
the machine in its hello. A check looks and changes nothing that lasts. One that cannot look says so: it never ends the
others.
"""
