"""Organisations, tenants, quotas, members and pools as YAML: parsing, comparison with the server, and changes."""
