"""Partitions of telemetry: created ahead, dropped after their retention."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.utils import timezone

from apps.nodes.models import UsageFrame
from apps.nodes.services.telemetry import partitions

NOW = datetime(2026, 6, 15, 12, 30, tzinfo=UTC)


@pytest.fixture(autouse=True)
def noon(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timezone, "now", lambda: NOW)


def names(table: str = "nodes_usageframe") -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass", [table])
        return sorted(name for (name,) in cursor.fetchall())


def frame(at: datetime, seq: int = 1) -> UsageFrame:
    return UsageFrame.objects.create(node_id=1, at=at, seq=seq)


def lies_in(one: UsageFrame) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT tableoid::regclass::text FROM nodes_usageframe WHERE seq = %s", [one.seq])
        (row,) = cursor.fetchall()
        return str(row[0])


def test_partitions_are_made_ahead_and_once() -> None:
    partitions.keep_up()
    before = names()
    assert {f"nodes_usageframe_20260615{hour}" for hour in (12, 13, 14, 15, 16)} <= set(before)
    assert partitions.keep_up()[0] == 0
    assert names() == before


def test_what_came_before_its_partition_moves_into_it_when_it_is_made() -> None:
    early, elsewhere = frame(NOW), frame(NOW - timedelta(hours=5), seq=2)
    assert lies_in(early) == "nodes_usageframe_default"
    partitions.keep_up()
    assert lies_in(early) == "nodes_usageframe_2026061512"
    assert lies_in(elsewhere) == "nodes_usageframe_default"


def test_what_is_over_is_dropped_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    partitions.keep_up()
    young, stray = frame(NOW), frame(NOW - timedelta(days=3), seq=2)
    monkeypatch.setattr(timezone, "now", lambda: NOW + timedelta(hours=23))
    partitions.keep_up()
    assert lies_in(young) == "nodes_usageframe_2026061512"
    assert not UsageFrame.objects.filter(seq=stray.seq).exists()
    monkeypatch.setattr(timezone, "now", lambda: NOW + timedelta(hours=25))
    assert partitions.keep_up()[1] == 1
    assert not UsageFrame.objects.exists()
    assert "nodes_usageframe_2026061512" not in names()
