"""Accounting of claims: state changes, charged quotas, reservations' part, borrowed core, metered hours, budgets."""
