"""The audit log's chain: a change of a sealed event is detected, by any author."""

import re
import threading
from collections.abc import Callable

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction

from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.quotas.services import audit, audit_chain, tenants
from apps.quotas.services.audit_chain import Head
from tests.cast import Cast


def write(count: int, *, actor: str = "system") -> None:
    for number in range(count):
        audit.record(
            SYSTEM,
            "test.write",
            audit.Named("test", f"{actor}/{number}"),
            before={"é": [1.5, None, {"z": 1, "a": True}]},
            after={"amount": 2**53},
        )


def behind_the_back(statement: str) -> None:
    """Act as the database's owner, who can disable the triggers."""
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(statement)
        cursor.execute("SET session_replication_role = DEFAULT")


@pytest.fixture
def events(cast: Cast) -> list[AuditEvent]:
    """Return the events of the cast's creation and ten more, sealed."""
    write(10)
    audit_chain.seal()
    return list(AuditEvent.objects.order_by("position"))


def test_what_nobody_touched_is_whole(events: list[AuditEvent]) -> None:
    verdict = audit_chain.verify()
    assert (verdict.faults, verdict.unsealed) == ([], 0)
    assert verdict.head == Head(len(events), events[-1].digest or "")
    assert [event.position for event in events] == list(range(1, len(events) + 1))


def test_every_altered_column_is_found(events: list[AuditEvent]) -> None:
    changes = {
        "at": "at + interval '1 microsecond'",
        "actor": "'user:nobody'",
        "action": "'claim.create'",
        "object_type": "'claim'",
        "object_id": "'x'",
        "tenant_id": "coalesce(tenant_id, 0) + 1",
        "before": "'{}'::jsonb",
        "after": "'{}'::jsonb",
        "source_ip": "'10.0.0.1'",
        "digest": f"'{'0' * 64}'",
    }
    columns = {field.column for field in AuditEvent._meta.fields}
    assert set(changes) == columns - {"id", "position"}, "each column of an event is a part of its digest"
    for (column, value), event in zip(changes.items(), events[-10:], strict=True):
        with transaction.atomic():
            behind_the_back(f"UPDATE quotas_auditevent SET {column} = {value} WHERE id = {event.pk}")  # noqa: S608
            assert f"event {event.pk} at place {event.position} " in audit_chain.verify().faults[0], column
            transaction.set_rollback(True)


@pytest.mark.parametrize("place", [1, 5, 12])
def test_a_removed_event_is_found(events: list[AuditEvent], place: int) -> None:
    behind_the_back(f"DELETE FROM quotas_auditevent WHERE position = {place}")  # noqa: S608
    assert f"places {place} to {place} are missing" in audit_chain.verify().faults[0]


def test_a_removed_event_is_found_even_where_the_others_move_up(events: list[AuditEvent]) -> None:
    behind_the_back("DELETE FROM quotas_auditevent WHERE position = 5")
    behind_the_back("UPDATE quotas_auditevent SET position = -position WHERE position > 5")
    behind_the_back("UPDATE quotas_auditevent SET position = -position - 1 WHERE position < 0")
    assert f"event {events[5].pk} at place 5 " in audit_chain.verify().faults[0]


def test_a_tail_that_was_cut_off_is_found_by_a_head_that_was_kept(events: list[AuditEvent]) -> None:
    kept = audit_chain.head()
    behind_the_back(f"DELETE FROM quotas_auditevent WHERE position > {kept.position - 3}")  # noqa: S608
    assert audit_chain.verify().faults == [], "the chain alone cannot tell; the head can"
    assert "its end is gone" in audit_chain.verify(heads=[kept]).faults[0]
    write(5)
    audit_chain.seal()
    assert "written anew" in audit_chain.verify(heads=[kept]).faults[0]


def test_a_chain_goes_through_every_head_that_was_kept(events: list[AuditEvent]) -> None:
    kept = [audit_chain.head()]
    write(3)
    audit_chain.seal()
    kept.append(audit_chain.head())
    assert audit_chain.verify(heads=kept).faults == []
    assert "written anew" in audit_chain.verify(heads=[Head(kept[0].position, "f" * 64)]).faults[0]


def test_every_chain_goes_through_the_start(events: list[AuditEvent]) -> None:
    """An empty log has a head too, and it may be the recorded one."""
    assert audit_chain.verify(heads=[Head(0, audit_chain.START)]).faults == []
    assert "written anew" in audit_chain.verify(heads=[Head(0, "f" * 64)]).faults[0]


@pytest.mark.parametrize(
    "change",
    [
        {"actor": "nobody"},
        {"position": None, "digest": None},
        {"digest": "f" * 64},
        {"position": 999},
    ],
)
def test_the_database_refuses_to_change_what_is_sealed(events: list[AuditEvent], change: dict[str, object]) -> None:
    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
        AuditEvent.objects.filter(pk=events[3].pk).update(**change)


@pytest.mark.parametrize("change", [{"actor": "nobody", "position": 999, "digest": "f" * 64}, {"digest": "f" * 64}])
def test_the_sealer_may_write_the_seal_and_nothing_else(cast: Cast, change: dict[str, object]) -> None:
    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
        AuditEvent.objects.update(**change)


def test_events_that_nobody_seals_are_noticed(cast: Cast) -> None:
    behind_the_back("UPDATE quotas_auditevent SET at = at - interval '6 minutes'")
    assert "is the Celery beat running?" in audit_chain.verify().faults[0]


def test_the_command_ends_with_one_and_says_which(events: list[AuditEvent], capsys: pytest.CaptureFixture[str]) -> None:
    call_command("verify_audit")
    printed = capsys.readouterr().out.strip()
    assert re.fullmatch(rf"{len(events)}:[0-9a-f]{{64}}", printed)
    call_command("verify_audit", "--head", printed)
    behind_the_back("DELETE FROM quotas_auditevent WHERE position = 5")
    with pytest.raises(CommandError, match="places 5 to 5 are missing") as refused:
        call_command("verify_audit")
    assert refused.value.returncode == 1
    with pytest.raises(CommandError, match="is no head"):
        call_command("verify_audit", "--head", "12")


def test_an_admin_reads_place_and_digest_with_the_event(cast: Cast) -> None:
    audit_chain.seal()
    row = cast.anna.get("audit/?action=member.set&limit=1").body["results"][0]
    event = AuditEvent.objects.get(pk=row["id"])
    assert (row["position"], row["digest"], row["tenant"]) == (event.position, event.digest, "acme")


def test_writers_and_sealers_at_once_leave_one_whole_chain(real_cast: Cast) -> None:
    """Writers commit out of the order of their keys; two sealers run all the while."""
    writers = 8
    done = threading.Event()

    def writer(number: int) -> None:
        for turn in range(12):
            with transaction.atomic():
                write(1, actor=f"w{number}.{turn}")
                tenants.create_tenant(principal=SYSTEM, slug=f"t{number}-{turn}", name="x")

    def sealer() -> None:
        while not done.is_set():
            audit_chain.seal()

    sealers = [in_thread(sealer) for _ in range(2)]
    for thread in [in_thread(lambda number=number: writer(number)) for number in range(writers)]:  # type: ignore[misc]
        thread.join()
    done.set()
    for thread in sealers:
        thread.join()
    audit_chain.seal()
    verdict = audit_chain.verify()
    assert (verdict.faults, verdict.unsealed) == ([], 0)
    assert verdict.head.position == AuditEvent.objects.count() >= writers * 12 * 2


def test_chaining_without_the_sealers_lock_breaks(real_cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: two sealers without a lock take the same place."""
    write(50)
    both = threading.Barrier(2, timeout=10)
    real = audit_chain.head
    refused: list[IntegrityError] = []

    def slow_head() -> Head:
        found = real()
        both.wait()
        return found

    def sealer() -> None:
        try:
            audit_chain._seal_batch()
        except IntegrityError as error:
            refused.append(error)

    monkeypatch.setattr(audit_chain, "head", slow_head)
    monkeypatch.setattr(audit_chain, "_try_lock", lambda cursor: True)
    threads = [in_thread(sealer) for _ in range(2)]
    for thread in threads:
        thread.join()
    assert refused


def in_thread(work: Callable[[], None]) -> threading.Thread:
    """Run with a database connection of its own, closed at the end."""

    def run() -> None:
        try:
            work()
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread
