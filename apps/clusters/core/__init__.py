"""Decisions about pods, pure: no Django, no I/O, no clock, no randomness."""
