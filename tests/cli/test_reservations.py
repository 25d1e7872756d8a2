"""Reservations: booking, the calendar, release."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.commands import Shell

pytestmark = [pytest.mark.serial, pytest.mark.timeout(180)]


def test_a_window_is_booked_shown_in_the_calendar_and_given_back(olga: Shell, tenant: str) -> None:
    start = datetime.now(UTC).replace(microsecond=0) + timedelta(days=30)
    window = ("--start", start.isoformat(), "--end", (start + timedelta(hours=1)).isoformat())
    asked = ("reservation", "create", "--tenant", tenant, "--name", "exam", "--core", "30", "--memory", "1GiB", *window)
    assert olga.data(*asked, "--dry-run")["fits"] is True
    made = olga.data(*asked)
    assert (made["state"], made["memory_mib"]) == ("booked", 1024)
    assert [row["uid"] for row in olga.data("reservation", "list", "--tenant", tenant)] == [made["uid"]]
    times = ("--from", start.isoformat(), "--to", (start + timedelta(hours=2)).isoformat())
    shown = olga.data("reservation", "calendar", *times)
    taken = [hold for gpu in shown["gpus"] for hold in gpu["holds"] if hold["uid"] == made["uid"]]
    assert [(hold["core"], hold["name"]) for hold in taken] == [(30, "exam")]
    head = olga.run("reservation", "calendar", *times).out.splitlines()[0]
    assert head.split() == ["NODE", "GPU", "FROM", "TO", "CORE", "MEMORY", "MIB"]
    assert olga.data("reservation", "change", made["uid"], "--name", "retake")["name"] == "retake"
    assert olga.data("reservation", "release", made["uid"])["ending"] == "cancelled"
    late = olga.run("claim", "create", "--tenant", tenant, "--core", "1", "--memory", "1", "--reservation", made["uid"])
    assert (late.code, "is released" in late.err) == (3, True)
    assert olga.run(*asked[:-2], "--end", start.isoformat()).code == 3
