"""Moves of claims to other nodes."""
