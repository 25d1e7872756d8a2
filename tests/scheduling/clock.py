"""A clock that tests control: the services' timestamps use its time, and hours pass at once."""

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from apps.nodes.models import Node

# A Monday, so that weeks are easy to count; the middle of a month that has thirty days.
START = datetime(2026, 6, 15, 12, tzinfo=UTC)


class Clock:
    """The time that `timezone.now()` returns."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **how: float) -> datetime:
        """Advance the time; the agents keep reporting."""
        self.now += timedelta(**how)
        Node.objects.exclude(last_seen_at=None).update(last_seen_at=self.now)
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace the clock before the cast is made: its tokens and rows use this time."""
    clock = Clock()
    monkeypatch.setattr(timezone, "now", clock)
    return clock
