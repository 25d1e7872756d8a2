"""Suspend and resume on a GPU: how long it takes, what comes back, what is refused."""
