"""Admission webhooks: what the API server asks before it keeps a pod, a quota or a SharePod. Pure, but for the door."""
