"""Scheduling cycles: a pool cached in memory, one round over its queue, and the commit of what the core decided."""
