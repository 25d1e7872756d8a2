"""Tenants, quotas, members and pools as YAML: what files say, what the server has, and the way to bring it there."""
