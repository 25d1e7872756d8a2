"""The journal of a node between which programs are carried: what it must have before the server is told."""

from pathlib import Path

import pytest

from agent import wire
from agent.host.processes import Process
from agent.suspend.records import Suspension, Suspensions

CLAIM = "00000000-0000-4000-8000-000000000001"
ONE = {Process(pid=1 << 30, start_ticks=1)}
TICKET = wire.Ticket(host="10.0.0.2", port=7000, fingerprint="0" * 64, secret="s" * 43)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "suspensions.json"


def block(journal: Path) -> None:
    """Let no more writes of the journal succeed, root's either."""
    journal.with_name(f".{journal.name}.new").mkdir()


def wanted(*, suspended: bool, carry: wire.Carry | None) -> wire.Assignment:
    return wire.Assignment(
        uid="00000000-0000-4000-8000-000000000002",
        claim_uid=CLAIM,
        tenant="acme",
        gpu_uuid="GPU-00000000-0000-4000-8000-000000000003",
        generation=1,
        core_request=10,
        core_limit=10,
        memory_bytes=1,
        secret_digest="0" * 64,
        suspended=suspended,
        carry=carry,
    )


@pytest.mark.parametrize("is_dumped", [True, False])
def test_dumped_programs_are_not_reported_suspended_before_the_journal_says_so(journal: Path, is_dumped: bool) -> None:
    records = Suspensions(journal)
    records.claims[CLAIM] = Suspension("suspending", is_dumped=is_dumped)
    assert records.store()
    block(journal)
    # Others are asked again by the next agent.
    assert records.note_suspended(CLAIM, ONE) is not is_dumped
    assert records.claims[CLAIM].phase == ("suspending" if is_dumped else "suspended")
    assert Suspensions(journal).claims[CLAIM].phase == "suspending"


def test_what_was_reported_once_is_so_for_the_next_agent(journal: Path) -> None:
    records = Suspensions(journal)
    records.claims[CLAIM] = Suspension("suspending", is_dumped=True)
    assert records.note_suspended(CLAIM, ONE)
    again = Suspensions(journal).claims[CLAIM]
    assert (again.phase, again.is_dumped) == ("suspended", True)
    # Repeated by an agent that cannot write any more.
    block(journal)
    assert records.note_suspended(CLAIM, ONE)


def test_a_new_node_that_lost_its_journal_looks_for_the_programs_first(journal: Path) -> None:
    records = Suspensions(journal)
    records.wish(CLAIM, [wanted(suspended=False, carry=wire.Carry())])
    assert records.claims[CLAIM].phase == "resuming"


def test_a_claim_that_has_come_is_not_looked_at_again(journal: Path) -> None:
    records = Suspensions(journal)
    records.wish(CLAIM, [wanted(suspended=True, carry=wire.Carry())])
    records.note_suspended(CLAIM, set())
    records.wish(CLAIM, [wanted(suspended=False, carry=wire.Carry())])
    records.note_running(CLAIM)
    records.wish(CLAIM, [wanted(suspended=False, carry=wire.Carry())])
    assert CLAIM not in records.claims
    records.wish(CLAIM, [wanted(suspended=False, carry=None)])
    assert CLAIM not in records.claims


def test_a_claim_that_is_not_carried_is_in_force_at_once(journal: Path) -> None:
    records = Suspensions(journal)
    records.wish(CLAIM, [wanted(suspended=False, carry=None)])
    assert CLAIM not in records.claims
