"""Accounting: what claims used and cost, whether they had what they are promised, and whether the books are right."""
