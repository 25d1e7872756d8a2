"""Constructors of a check's finding. A finding is the wire's own `Check`: it is sent unchanged."""

from agent.wire import Check

# The wire's bound; a text with a path in it may be long.
MOST = 500


def ok(name: str, detail: str) -> Check:
    """Return a finding without a problem."""
    return Check(name=name, state="ok", detail=detail[:MOST])


def warning(name: str, detail: str, cure: str) -> Check:
    """Return a finding of a problem with which the agent works, with less than it could."""
    return Check(name=name, state="warning", detail=detail[:MOST], cure=cure[:MOST])


def failed(name: str, detail: str, cure: str) -> Check:
    """Return a finding of a problem with which limits would not hold or the agent would not start."""
    return Check(name=name, state="failed", detail=detail[:MOST], cure=cure[:MOST])
