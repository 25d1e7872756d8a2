"""Telling others: which webhooks there are, what is written down for them, and sending it."""
