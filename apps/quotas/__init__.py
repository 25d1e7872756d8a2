"""Tenants, members, tokens, audit, quotas and their ledger."""
