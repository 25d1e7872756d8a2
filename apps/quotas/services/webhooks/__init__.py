"""Webhooks: their management, the outbox of messages, and delivery."""
