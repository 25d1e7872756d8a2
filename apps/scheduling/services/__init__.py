"""The verbs of this app; keyword-only arguments, one transaction each.

Locks are always taken in this order: claim, pools, membership, tenants, shares of cohorts, quotas, GPUs, nodes, each by
key. Two transactions can then wait for each other in one direction only.
"""
