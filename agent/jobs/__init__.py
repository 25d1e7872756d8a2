"""Runs of jobs: commands that the agent starts under claims, each kept by a process of its own."""
