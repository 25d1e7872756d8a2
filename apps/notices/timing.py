"""When a person's lines and mails may go: digests, quiet hours, and the kinds that pass these."""

from dataclasses import replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from apps.notices.models import URGENT, NoticeKind, NoticeSettings, When
from gpucloud import schedules


def due_at(one: NoticeSettings, kind: str, when: str, now: datetime) -> datetime:
    """Return when a line may be mailed: now or at the hour of the digest, and after the quiet hours."""
    due = _next_digest(one, now) if when == When.DIGEST else now
    return due if kind in passing(one) else (quiet_until(one, due) or due)


def passing(one: NoticeSettings) -> set[NoticeKind]:
    """Return the kinds that are mailed in quiet hours, too."""
    return {kind for kind in URGENT if one.urgent_passes and getattr(one, kind) == When.NOW}


def quiet_until(one: NoticeSettings, at: datetime) -> datetime | None:
    """Return when the quiet hours end that hold at this time; None without any."""
    if not one.quiet_hours:
        return None
    # A window that never closes would keep everything for ever: it keeps nothing.
    return _quiet_of(one).closes_at(at)


def _quiet_of(one: NoticeSettings) -> schedules.Schedule:
    """Return the quiet hours, in the person's own time zone if they name none."""
    found = schedules.parse(one.quiet_hours)
    return found if len(one.quiet_hours.split()) == 3 else replace(found, zone=zone_of(one))


def zone_of(one: NoticeSettings) -> ZoneInfo:
    """Return the person's time zone."""
    return ZoneInfo(one.user.time_zone or "UTC")


def _next_digest(one: NoticeSettings, now: datetime) -> datetime:
    local = now.astimezone(zone_of(one))
    today = local.replace(hour=one.digest_hour, minute=0, second=0, microsecond=0)
    return today if today > local else today + timedelta(days=1)
