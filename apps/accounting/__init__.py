"""Accounting: quotas, budgets and requests as the API shows them, usage reports, and checks of guarantees and books."""
