"""Admission webhooks for pods, quotas and SharePods. Pure, except for the handler."""
