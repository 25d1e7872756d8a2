"""Nodes, GPUs, the gateway of their agents, and telemetry."""
