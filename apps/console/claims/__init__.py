"""Pages of claims: list, detail, creation, live changes, sharing."""
