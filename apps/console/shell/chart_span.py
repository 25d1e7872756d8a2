"""The time that charts of claims and GPUs show: a range up to now, or a span that its reader has selected."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

# After a change the agent reports twice within half a second: a longer step would mix the old limit with the new one.
STEP_SECONDS: Final = 0.2
LIVE: Final = "5m"
RANGES: Final[dict[str, tuple[timedelta, "StrPromise", "StrPromise"]]] = {
    LIVE: (timedelta(minutes=5), _("5 min"), _("last 5 minutes")),
    "1h": (timedelta(hours=1), _("1 h"), _("last hour")),
    "6h": (timedelta(hours=6), _("6 h"), _("last 6 hours")),
    "24h": (timedelta(hours=24), _("24 h"), _("last 24 hours")),
    "7d": (timedelta(days=7), _("7 d"), _("last 7 days")),
    "30d": (timedelta(days=30), _("30 d"), _("last 30 days")),
}
LONGEST: Final = RANGES["30d"][0]
# Samples come once a second: a shorter selection has nothing more to show.
SHORTEST: Final = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class ChartSpan:
    """The time that is shown; `live`: the last minutes, second by second, which each frame of an agent moves."""

    name: str
    begin: datetime
    end: datetime
    live: bool

    @property
    def words(self) -> "StrPromise":
        """The range in words."""
        return RANGES[self.name][2]

    @property
    def choices(self) -> list[tuple[str, "StrPromise"]]:
        """The names and labels of all ranges."""
        return [(name, label) for name, (_length, label, _words) in RANGES.items()]

    @property
    def window(self) -> dict[str, Any]:
        """The arguments for utilization: a step is chosen for long spans."""
        return {"start": self.begin, "end": self.end, "step_seconds": STEP_SECONDS if self.live else None}


def last_minutes() -> ChartSpan:
    """Return the range that pages show at first."""
    return _up_to_now(LIVE)


def span_of(request: HttpRequest) -> ChartSpan:
    """Return the range or the selected span of the URL; the last minutes for any other value."""
    name = request.GET.get("range", LIVE)
    shown = _up_to_now(name if name in RANGES else LIVE)
    begin, end = (_moment(request.GET.get(edge, "")) for edge in ("from", "to"))
    if begin is None or end is None:
        return shown
    now = timezone.now()
    # A minute more: the range was 30 days long when it was drawn.
    if end - begin < SHORTEST or begin < now - LONGEST - timedelta(minutes=1):
        return shown
    return ChartSpan(shown.name, begin, min(end, now), live=False)


def _up_to_now(name: str) -> ChartSpan:
    now = timezone.now()
    return ChartSpan(name, now - RANGES[name][0], now, live=name == LIVE)


def _moment(text: str) -> datetime | None:
    try:
        seconds = float(text)
        return datetime.fromtimestamp(seconds, tz=UTC) if math.isfinite(seconds) else None
    except (ValueError, OverflowError, OSError):
        return None
