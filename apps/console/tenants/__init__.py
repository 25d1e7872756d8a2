"""Pages of tenants: members, quotas, limits, budgets, approval of requests."""
