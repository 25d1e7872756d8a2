"""Reclaiming of placements: reclaim, preemption, drains, and nodes that are given up."""
