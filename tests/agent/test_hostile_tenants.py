"""Damage by a tenant's programs to its own files, and to the agent's: the agent keeps running and reports it."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from agent import wire
from agent.claims.claim import ClaimRuntime
from agent.claims.failures import ClaimFailures
from agent.claims.groups import Groups
from agent.claims.registry import Registry
from agent.host import processes
from agent.host.processes import Process
from agent.node import Node
from tests.agent.control import Connection
from tests.agent.stage import GIB, Stage, eventually, remove_at_once
from tests.agent.test_launch_methods import spec_file
from tests.agent.test_limits import load
from tests.agent.test_reconcile import changed, put

LONG = pytest.mark.long
CLAIM = "7c9e6679-7425-40de-944b-e07fc1f90ae7"


@pytest.fixture
async def held(stage: Stage, link: Connection) -> wire.Assignment:
    """Put a claim in force: half a GPU, 4 GiB."""
    assignment = stage.assignment()
    await put(link, 1, assignment)
    return assignment


async def told(link: Connection, code: str) -> str:
    return (await link.expect(wire.Event, lambda event: event.code == code)).detail


def is_up(stage: Stage) -> bool:
    return stage.agent is not None and stage.agent.poll() is None


async def release(link: Connection, held: wire.Assignment) -> None:
    await link.send(wire.Desired(frame=9, assignments=[changed(held, present=False, generation=9)]))
    await link.state(held.uid, "released", 9)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty", marks=LONG),
        pytest.param(b"garbage", id="short", marks=LONG),
        pytest.param(os.urandom(561_152), id="random"),
    ],
)
async def test_garbage_in_the_usage_page_is_told(
    stage: Stage, link: Connection, held: wire.Assignment, content: bytes
) -> None:
    program = await load(stage, held, "--memory", "1GiB", "--kernel-us", "0")
    program.send_signal(signal.SIGSTOP)
    (stage.claim_dir(held) / "usage").write_bytes(content)
    assert held.claim_uid in await told(link, "usage-page-damaged")
    await release(link, held)
    assert processes.find(program.pid) is None
    assert is_up(stage)


async def test_forged_counters_behind_a_good_header_break_nothing(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    program = await load(stage, held, "--memory", "1GiB", "--kernel-us", "0")
    program.send_signal(signal.SIGSTOP)
    usage = stage.claim_dir(held) / "usage"
    with usage.open("r+b") as page:
        page.seek(stage.library.slots_used_at)
        page.write(os.urandom(4))
        page.seek(stage.library.processes_at)
        page.write(os.urandom(usage.stat().st_size - stage.library.processes_at))
    # Samples continue, and the server accepts each.
    link.forget()
    for _ in range(2):
        await link.expect(wire.Usage)
        link.forget()
    await release(link, held)
    assert is_up(stage)


async def test_a_deleted_directory_is_told_and_made_again_when_its_programs_have_ended(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    program = await load(stage, held, "--memory", "1GiB", "--kernel-us", "0")
    directory = stage.claim_dir(held)
    remove_at_once(directory)
    assert str(directory) in await told(link, "claim-files-lost")
    # The program continues under its last limits; no other may start without any.
    assert program.poll() is None
    code, _, error = await stage.executed(held.claim_uid, "true")
    assert (code, "was deleted or replaced" in error) == (125, True)
    await eventually(lambda: not spec_file(stage, held).exists())
    program.kill()
    await asyncio.to_thread(program.wait)
    await eventually((directory / "env").exists)
    slot = stage.slot(held)
    assert slot is not None
    assert (slot.is_open, slot.memory_bytes) == (True, 4 * GIB)
    assert (await stage.executed(held.claim_uid, "true"))[0] == 0
    assert spec_file(stage, held).exists()


@pytest.mark.parametrize("name", ["usage", pytest.param("limits", marks=LONG)])
async def test_a_replaced_page_is_told_and_a_release_still_ends_the_programs(
    stage: Stage, link: Connection, held: wire.Assignment, name: str
) -> None:
    program = await load(stage, held, "--kernel-us", "0")
    page = stage.claim_dir(held) / name
    page.rename(page.with_name("aside"))
    page.write_bytes(b"mine")
    assert f"the {name} page" in await told(link, "claim-files-lost")
    await release(link, held)
    assert processes.find(program.pid) is None
    assert not stage.claim_dir(held).exists()
    assert is_up(stage)


@pytest.mark.parametrize("count", [50, pytest.param(500, marks=LONG)])
async def test_children_that_will_not_end_are_ended_and_told_of_once(
    stage: Stage, link: Connection, held: wire.Assignment, count: int
) -> None:
    script = f"trap '' TERM; for i in $(seq {count}); do sleep 600 & done; echo up; wait"
    program = stage.exec(held.claim_uid, "sh", "-c", script)
    await asyncio.to_thread(program.stdout.readline)
    status = await asyncio.to_thread(stage.status)
    children = status["assignments"][0]["processes"]
    await release(link, held)
    detail = await told(link, "process-killed")
    assert detail.startswith(f"{count + 1} processes (")
    assert len(detail) < 300
    assert [pid for pid in children if processes.find(pid)] == []
    assert len([one for one in link.frames if isinstance(one, wire.Event) and one.code == "process-killed"]) == 1


async def test_a_page_that_is_full_is_told(stage: Stage, link: Connection, held: wire.Assignment) -> None:
    usage = stage.claim_dir(held) / "usage"
    places, me = stage.library.max_processes, processes.myself()
    with usage.open("r+b") as page:
        page.seek(stage.library.slots_used_at)
        page.write(places.to_bytes(4, "little"))
        for place in range(places):
            page.seek(stage.library.processes_at + place * stage.library.process_bytes)
            # A living one, so that no slot is cleared.
            page.write(((processes.own_namespace() << 32) | me.pid).to_bytes(8, "little"))
            page.write(me.start_ticks.to_bytes(8, "little"))
    assert held.claim_uid in await told(link, "usage-page-full")
    assert is_up(stage)


def node_with_claim(stage: Stage, run_dir: Path) -> tuple[Node, wire.Assignment]:
    """Return a node, without its agent, that carries one claim; this process belongs to the claim."""
    stage.gpus = ["GPU-00000000-0000-4000-8000-000000000001"]
    (run_dir / "claims").mkdir()
    registry = Registry(run_dir / "processes.json")
    node = Node(library=stage.library, claims=run_dir / "claims", registry=registry, grace_seconds=10)
    node.know_gpus(frozenset(stage.gpus), None)
    held = stage.assignment()
    node.apply(wire.Desired(frame=1, assignments=[held]), now=0)
    # A process that does not end whatever the agent does: this one.
    registry.add(held.claim_uid, processes.myself())
    return node, held


async def test_each_end_of_a_program_that_kept_lent_memory_is_told(stage: Stage, run_dir: Path) -> None:
    node, held = node_with_claim(stage, run_dir)
    claim_failures, runtime = ClaimFailures(grace_seconds=10), node.runtimes[held.claim_uid]
    for now, pid in ((1.0, 4711), (2.0, 4712)):
        # What two refreshes between reports found is reported together.
        runtime.kept_lent += [Process(pid, 1), Process(pid, 1)]
        (news,) = claim_failures.take_new(node.runtimes, now=now)
        assert (news.code, news.assignment_uid) == (wire.LENT_MEMORY_KEPT, held.uid)
        assert news.detail.startswith(f"Process {pid} of claim {held.claim_uid} got SIGKILL: borrowed memory")
    assert claim_failures.take_new(node.runtimes, now=3) == []


async def test_a_killed_program_that_still_lives_is_told_once(stage: Stage, run_dir: Path) -> None:
    node, held = node_with_claim(stage, run_dir)
    claim_failures = ClaimFailures(grace_seconds=10)
    node.runtimes[held.claim_uid].ending_since = 0.0
    assert claim_failures.take_new(node.runtimes, now=14.9) == []
    (news,) = claim_failures.take_new(node.runtimes, now=15)
    assert (news.code, f"Process {os.getpid()} " in news.detail) == ("process-stuck", True)
    assert claim_failures.take_new(node.runtimes, now=16) == []


async def test_a_programs_word_that_it_is_a_claims_counts_where_it_may_write_the_claims_page(
    stage: Stage, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_dir / "claims").mkdir()
    registry = Registry(run_dir / "processes.json")
    groups = Groups(CLAIM, None)
    runtime = ClaimRuntime(
        library=stage.library, claims=run_dir / "claims", claim_uid=CLAIM, registry=registry, groups=groups
    )
    counts = []
    for user in (0, os.getuid(), 61001, None):
        monkeypatch.setattr(processes, "user", lambda _, user=user: user)
        counts.append(runtime.accepts(processes.myself()))
    assert counts == [True, True, False, False]
    # A pod's: its programs run as the users of its images.
    runtime.share()
    monkeypatch.setattr(processes, "user", lambda _: 61001)
    assert runtime.accepts(processes.myself())


def test_a_claim_without_a_hierarchy_has_no_groups_and_no_errors() -> None:
    groups = Groups(CLAIM, None)
    groups.enter(processes.myself())
    groups.kill()
    groups.tidy()
    assert not groups.is_occupied()
    assert groups.members() == set()
