"""Dry runs of changes: the real services in a transaction that is rolled back."""
