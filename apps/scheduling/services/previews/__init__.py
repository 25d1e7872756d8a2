"""Previews: the real services in a transaction that is rolled back."""
