"""Unix seconds as text. Formatting needs no clock, so `datetime`, which has one, stays out of the core."""

DAY = 86400
# From 1 March of the year 0, after which a leap day is always a year's last, to 1 January 1970.
DAYS_BEFORE_1970 = 719_468
DAYS_OF_400_YEARS = 146_097


def utc(seconds: float) -> str:
    """Return the time as in `2026-11-21 19:48:13 UTC`, for moments after the year 0."""
    days, rest = divmod(int(seconds // 1), DAY)
    years400, day = divmod(days + DAYS_BEFORE_1970, DAYS_OF_400_YEARS)
    # A leap day every 4 years, not every 100, but every 400.
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    # Months from March on have 31, 30, 31, 30, 31 days, again and again: 153 in five.
    month = (5 * day + 2) // 153
    day_of_month = day - (153 * month + 2) // 5 + 1
    year += 400 * years400 + (month >= 10)
    month = month + 3 if month < 10 else month - 9
    hours, rest = divmod(rest, 3600)
    return f"{year:04}-{month:02}-{day_of_month:02} {hours:02}:{rest // 60:02}:{rest % 60:02} UTC"
