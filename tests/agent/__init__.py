"""The agent as it runs: a process of its own, on simulated GPUs, against a small control plane written here."""
