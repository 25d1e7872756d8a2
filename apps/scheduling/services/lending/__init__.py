"""Guarantees that others use meanwhile: lent, and given back, if need be by preemption."""
