"""Usage and cost: reports, roll-ups, utilization, and the comparison of ledger and claims."""
