"""Who may hold how much: tenants, members, tokens, audit; quotas and their ledger."""
