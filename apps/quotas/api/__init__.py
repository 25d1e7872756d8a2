"""REST routes of this app: tenants, members, quotas, pools, tokens, audit, me."""
