"""`manage.py wait_for_migrations`: processes of a new version start once its tables are there."""

import io
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.db.utils import OperationalError

from apps.quotas.management.commands import wait_for_migrations

LAST = ("quotas", "0001_initial")


def wait(monkeypatch: pytest.MonkeyPatch, *, during_pauses: list[Callable[[], None]]) -> str:
    """Return what the command wrote; a pause calls the next of these functions instead of passing time."""
    pauses = iter(during_pauses)
    # Only in this module: threads of the database's pool sleep, too.
    clock = SimpleNamespace(sleep=lambda _seconds: next(pauses)())
    monkeypatch.setattr(wait_for_migrations, "time", clock)
    monkeypatch.setattr(wait_for_migrations, "signal", SimpleNamespace(signal=lambda *_: None, SIGTERM=0))
    written = io.StringIO()
    call_command("wait_for_migrations", stderr=written)
    assert next(pauses, None) is None, "it did not wait as often as it should"
    return written.getvalue()


@pytest.mark.django_db(transaction=True)
def test_it_ends_at_once_where_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wait(monkeypatch, during_pauses=[]) == ""


@pytest.mark.django_db(transaction=True)
def test_it_waits_for_a_missing_migration_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = MigrationRecorder(connection)
    recorder.record_unapplied(*LAST)

    written = wait(monkeypatch, during_pauses=[lambda: None, lambda: recorder.record_applied(*LAST)])

    assert written.count("Waiting for the migrations") == 1


@pytest.mark.django_db(transaction=True)
def test_it_waits_for_a_database_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([OperationalError("connection refused"), OperationalError("connection refused")])
    read = MigrationRecorder.applied_migrations

    def fail_first(recorder: MigrationRecorder) -> object:
        if (error := next(answers, None)) is not None:
            raise error
        return read(recorder)

    monkeypatch.setattr(MigrationRecorder, "applied_migrations", fail_first)

    assert wait(monkeypatch, during_pauses=[lambda: None] * 2) == "Waiting for the database: connection refused\n"
