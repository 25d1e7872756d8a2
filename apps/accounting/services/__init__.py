"""Usage and cost, previews of changed quotas, and the comparison of ledger and claims."""
