"""Replay of a production trace by its own clock: waiting times, and GPU-hours served."""
