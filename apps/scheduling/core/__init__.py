"""The decisions, pure: frozen values in, a value out. No Django, no I/O, no clock, no randomness."""
