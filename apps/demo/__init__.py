"""The seeded platform of `make demo`: its contents, and an idempotent setup."""
