"""Changing what runs by what was measured: observed use, proposals, what moving claims would free."""
