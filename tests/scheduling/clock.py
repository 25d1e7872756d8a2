"""A clock that tests turn: hours pass in no time, and what the services write bears the time that it shows."""

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from apps.nodes.models import Node

# A Monday, so that weeks are easy to count; the middle of a month that has thirty days.
START = datetime(2026, 6, 15, 12, tzinfo=UTC)


class Clock:
    """What `timezone.now()` answers."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **how: float) -> datetime:
        """Let time pass; the agents go on reporting."""
        self.now += timedelta(**how)
        Node.objects.exclude(last_seen_at=None).update(last_seen_at=self.now)
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Before the cast, where both are used: tokens and rows are made by it."""
    clock = Clock()
    monkeypatch.setattr(timezone, "now", clock)
    return clock
