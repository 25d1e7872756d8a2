"""Pages of access: tokens, agents, the audit log."""
