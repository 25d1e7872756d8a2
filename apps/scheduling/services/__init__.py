"""Services: the operations of this app; keyword-only arguments, one transaction each.

Locks are always taken in this order: claim, pools, membership, tenants, shares of cohorts, quotas, GPUs, nodes; within
a kind in key order. Two transactions can then wait for each other in one direction only.
"""
