"""Taking placements back: reclaim, preemption, drains, and nodes that are given up."""
