"""The host: GPUs, processes, control groups, the arbiter, health."""
