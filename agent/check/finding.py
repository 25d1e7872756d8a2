"""How a check says what it found. A finding is the wire's own `Check`: it travels as it is."""

from agent.wire import Check

# The wire's bound; words that hold a path may be long.
MOST = 500


def ok(name: str, detail: str) -> Check:
    """As it should be."""
    return Check(name=name, state="ok", detail=detail[:MOST])


def warning(name: str, detail: str, cure: str) -> Check:
    """The agent works, with less than it could."""
    return Check(name=name, state="warning", detail=detail[:MOST], cure=cure[:MOST])


def failed(name: str, detail: str, cure: str) -> Check:
    """Limits would not hold, or the agent would not start."""
    return Check(name=name, state="failed", detail=detail[:MOST], cure=cure[:MOST])
