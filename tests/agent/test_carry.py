"""Running programs that are carried from one node to another by CRIU, on the simulated driver: two agents, each in
namespaces of its own."""

import asyncio
import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec import UNSET

from agent import settings, wire
from agent.carrying import trial
from tests.agent.carrying import CHAIN, CRIU, Site, find_lack
from tests.agent.control import Connection, Control
from tests.agent.stage import eventually
from tests.agent.suspensions import refusal
from tests.agent.test_reconcile import changed, put

pytestmark = pytest.mark.skipif(find_lack() is not None, reason=f"running programs: {find_lack()}")


USER = 1234


class Two(NamedTuple):
    """Two nodes, and their connections."""

    old: Site
    new: Site
    at_old: Connection
    at_new: Connection


def make_places() -> tuple[Path, tuple[Path, Path]]:
    """Return a directory on a tmpfs, and in it the run directory and the file that both nodes use."""
    root = Path(tempfile.mkdtemp(prefix="gpucloud-test-", dir="/dev/shm"))
    root.chmod(0o755)
    paths = (root / "run", root / "node")
    paths[0].mkdir()
    paths[1].touch()
    return root, paths


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    root, paths = make_places()
    sites, controls = [], []
    for name in ("old", "new"):
        control = Control()
        await control.start()
        controls.append(control)
        (root / f"{name}-run").mkdir(mode=0o755)
        site = Site(tmp_path / name, root / f"{name}-run", control, paths)
        sites.append(site)
        site.node_file.chmod(0o666)
        await site.open()
    at_old, at_new = await sites[0].begin(), await sites[1].begin()
    yield Two(sites[0], sites[1], at_old, at_new)
    for site in sites:
        site.close()
    for control in controls:
        await control.stop()
    shutil.rmtree(root)


def read_steps(out: Path) -> list[list[str]]:
    return [line.split() for line in out.read_text().splitlines()] if out.exists() else []


def check_chain(out: Path) -> None:
    """See that every step was taken once, in order, without an error."""
    chain = b""
    for number, (step, shown, error) in enumerate(read_steps(out)):
        chain = hashlib.sha256(chain + str(number).encode()).digest()
        assert (int(step), shown, error) == (number + 1, chain.hex(), "0")


async def goes_on(out: Path) -> None:
    before = len(read_steps(out))
    await eventually(lambda: len(read_steps(out)) > before + 5)


async def start_chain(two: Two, out: Path, *, mib: int = 64, user: int = 0) -> wire.Assignment:
    held = two.old.assignment()
    await put(two.at_old, 1, held)
    await two.old.launch(held.claim_uid, CHAIN, str(out), str(mib), user=user)
    await eventually(lambda: len(read_steps(out)) > 5)
    return held


async def ready(two: Two, held: wire.Assignment) -> tuple[wire.Assignment, wire.Ticket]:
    """Have the new node offer a ticket for the claim."""
    there = changed(two.new.assignment(), claim_uid=held.claim_uid, suspended=True, generation=2, carry=wire.Carry())
    await two.at_new.send(wire.Desired(frame=1, assignments=[there]))
    seen = await two.at_new.state(there.uid, "suspended", 2)
    assert seen.ticket is not UNSET
    return there, seen.ticket


async def leave(two: Two, held: wire.Assignment, ticket: wire.Ticket) -> wire.Assignment:
    """Have the old node send the programs."""
    wanted = changed(held, suspended=True, generation=3, carry=wire.Carry(ticket=ticket))
    await two.at_old.send(wire.Desired(frame=2, assignments=[wanted]))
    return wanted


async def arrive(two: Two, there: wire.Assignment) -> wire.Assignment:
    wanted = changed(there, suspended=False, generation=4)
    await two.at_new.send(wire.Desired(frame=2, assignments=[wanted]))
    return wanted


async def test_programs_go_on_on_another_node(two: Two, tmp_path: Path) -> None:
    out = tmp_path / "out"
    held = await start_chain(two, out)
    before = two.old.totals(held)
    there, ticket = await ready(two, held)
    await leave(two, held, ticket)
    await two.at_old.state(held.uid, "suspended", 3)
    steps = len(read_steps(out))
    await asyncio.sleep(0.5)
    assert len(read_steps(out)) == steps
    await arrive(two, there)
    await two.at_new.state(there.uid, "in_force", 4)
    await goes_on(out)
    after = two.new.totals(there)
    assert (after.memory_bytes, after.processes) == (before.memory_bytes, 1)
    await two.at_old.send(wire.Desired(frame=3, assignments=[changed(held, present=False, generation=5)]))
    await two.at_old.state(held.uid, "released", 5)
    await goes_on(out)
    check_chain(out)
    assert not [*(two.new.state_dir / "carry").glob("*"), *(two.old.state_dir / "carry").glob("*")]


async def test_a_program_that_was_carried_starts_another(two: Two, tmp_path: Path) -> None:
    out = tmp_path / "out"
    held = await start_chain(two, out)
    there = await carried(two, held)
    await two.at_new.state(there.uid, "in_force", 4)
    await goes_on(out)
    alone = two.new.totals(there)
    out.with_name("out.more").touch()
    await eventually(lambda: two.new.totals(there).memory_bytes >= alone.memory_bytes + (32 << 20))
    # Each reads when the other one began by clocks of its own, and neither takes the other one for dead.
    assert two.new.totals(there).processes == 2
    await goes_on(out)
    assert two.new.totals(there).processes == 2
    check_chain(out)


async def carried(two: Two, held: wire.Assignment) -> wire.Assignment:
    """Bring the claim's programs to the new node; the old one still has them, stopped."""
    there, ticket = await ready(two, held)
    await leave(two, held, ticket)
    await two.at_old.state(held.uid, "suspended", 3)
    return await arrive(two, there)


async def go_back(two: Two, held: wire.Assignment, there: wire.Assignment) -> None:
    """Let the new node confirm that nothing is there, and then the old one go on."""
    await two.at_new.send(wire.Desired(frame=9, assignments=[]))
    await two.at_new.state(there.uid, "released")
    await two.at_old.send(wire.Desired(frame=9, assignments=[changed(held, generation=9)]))
    await two.at_old.state(held.uid, "in_force", 9)


async def test_a_users_programs_are_carried_as_that_user(two: Two, tmp_path: Path) -> None:
    place = two.old.paths[0].parent / "users"
    place.mkdir()
    os.chown(place, USER, USER)
    out = place / "out"
    held = await start_chain(two, out, user=USER)
    there = await carried(two, held)
    await two.at_new.state(there.uid, "in_force", 4)
    await goes_on(out)
    check_chain(out)
    assert (two.new.run_dir / "claims" / held.claim_uid / "usage").stat().st_uid == USER


async def test_what_the_new_node_cannot_restore_goes_on_on_the_old_one(two: Two, tmp_path: Path) -> None:
    out = tmp_path / "out"
    held = await start_chain(two, out)
    there, ticket = await ready(two, held)
    await leave(two, held, ticket)
    await two.at_old.state(held.uid, "suspended", 3)
    # As on a node without the file system that the file is on.
    moved = out.rename(tmp_path / "away")
    await arrive(two, there)
    assert "CRIU cannot restore" in str((await refusal(two.at_new, there.uid, 4)).suspend_refused)
    moved.rename(out)
    await go_back(two, held, there)
    await goes_on(out)
    check_chain(out)


async def test_a_program_with_a_connection_is_refused_and_goes_on(two: Two, tmp_path: Path) -> None:
    out = tmp_path / "out"
    held = two.old.assignment()
    await put(two.at_old, 1, held)
    connected = "import socket\nserver = socket.create_server(('127.0.0.1', 0))\n"
    connected += "mine = socket.create_connection(server.getsockname())\ntheirs = server.accept()\n"
    await two.old.launch(held.claim_uid, connected + CHAIN, str(out), "64")
    await eventually(lambda: len(read_steps(out)) > 5)
    _, ticket = await ready(two, held)
    await leave(two, held, ticket)
    assert "CRIU cannot dump" in str((await refusal(two.at_old, held.uid, 3)).suspend_refused)
    await goes_on(out)
    check_chain(out)


async def test_a_user_whom_the_new_node_does_not_take_is_refused(two: Two, tmp_path: Path) -> None:
    await two.new.kill()
    two = two._replace(at_new=await two.new.begin(GPUCLOUD_CARRY_UIDS="1000"))
    out = tmp_path / "out"
    held = await start_chain(two, out)
    there = await carried(two, held)
    assert "GPUCLOUD_CARRY_UIDS" in str((await refusal(two.at_new, there.uid, 4)).suspend_refused)
    await go_back(two, held, there)
    await goes_on(out)
    check_chain(out)


async def test_an_old_agent_that_is_killed_keeps_what_it_sent_stopped(two: Two, tmp_path: Path) -> None:
    out = tmp_path / "out"
    held = await start_chain(two, out)
    there, ticket = await ready(two, held)
    wanted = await leave(two, held, ticket)
    await two.at_old.state(held.uid, "suspended", 3)
    await two.old.kill()
    again = await two.old.begin()
    await again.send(wire.Desired(frame=3, assignments=[wanted]))
    await again.state(held.uid, "suspended", 3)
    steps = len(read_steps(out))
    await asyncio.sleep(1)
    assert len(read_steps(out)) == steps
    await arrive(two, there)
    await two.at_new.state(there.uid, "in_force", 4)
    await goes_on(out)
    await again.send(wire.Desired(frame=4, assignments=[]))
    await again.state(held.uid, "released")
    await goes_on(out)
    check_chain(out)


@pytest.mark.parametrize("seconds", [0.0, 0.15, 0.4, 0.8])
async def test_a_new_agent_that_is_killed_restores_them_once(two: Two, tmp_path: Path, seconds: float) -> None:
    out = tmp_path / "out"
    held = await start_chain(two, out)
    there = await carried(two, held)
    await asyncio.sleep(seconds)
    await two.new.kill()
    again = await two.new.begin()
    await again.send(wire.Desired(frame=3, assignments=[there]))
    await again.state(there.uid, "in_force", 4)
    await goes_on(out)
    check_chain(out)
    assert two.new.totals(there).processes == 1


async def test_a_new_node_that_lost_what_came_does_not_say_that_it_runs(two: Two, tmp_path: Path) -> None:
    out = tmp_path / "out"
    held = await start_chain(two, out)
    there, ticket = await ready(two, held)
    await leave(two, held, ticket)
    await two.at_old.state(held.uid, "suspended", 3)
    await two.new.kill()
    # As a reboot does it.
    shutil.rmtree(two.new.state_dir / "carry")
    (two.new.run_dir / "suspensions.json").unlink()
    again = await two.new.begin()
    await again.send(wire.Desired(frame=3, assignments=[changed(there, suspended=False, generation=4)]))
    assert "have not come" in str((await refusal(again, there.uid, 4)).suspend_refused)
    await go_back(two._replace(at_new=again), held, there)
    await goes_on(out)
    check_chain(out)


@pytest.mark.parametrize("journal", ["old", "new"])
async def test_a_node_whose_journal_cannot_be_written_carries_nothing(two: Two, tmp_path: Path, journal: str) -> None:
    out = tmp_path / "out"
    held = await start_chain(two, out)
    site = two.old if journal == "old" else two.new
    if journal == "new":
        (site.run_dir / ".suspensions.json.new").mkdir()
        there = changed(
            two.new.assignment(), claim_uid=held.claim_uid, suspended=True, generation=2, carry=wire.Carry()
        )
        await two.at_new.send(wire.Desired(frame=1, assignments=[there]))
        seen = await refusal(two.at_new, there.uid, 2)
    else:
        _, ticket = await ready(two, held)
        (site.run_dir / ".suspensions.json.new").mkdir()
        await leave(two, held, ticket)
        seen = await refusal(two.at_old, held.uid, 3)
    assert "journal cannot be written" in str(seen.suspend_refused)
    await goes_on(out)
    check_chain(out)


@pytest.mark.parametrize("seconds", [0.05, 0.25, 0.5])
async def test_an_old_agent_that_is_killed_while_it_sends_lets_them_go_on(
    two: Two, tmp_path: Path, seconds: float
) -> None:
    out = tmp_path / "out"
    held = await start_chain(two, out, mib=512)
    _, ticket = await ready(two, held)
    await leave(two, held, ticket)
    await asyncio.sleep(seconds)
    await two.old.kill()
    again = await two.old.begin()
    await again.send(wire.Desired(frame=3, assignments=[changed(held, generation=9)]))
    await again.state(held.uid, "in_force", 9)
    await goes_on(out)
    check_chain(out)


async def test_nodes_say_that_they_can_carry(two: Two) -> None:
    assert (await two.at_old.expect(wire.Hello)).carry is True


def test_a_trial_as_another_user_leaves_nothing() -> None:
    before = find_inits()
    chosen = settings.read(
        server="http://127.0.0.1:1",
        state_dir=None,
        environment={"GPUCLOUD_CARRY": "127.0.0.1:0", "GPUCLOUD_CARRY_UIDS": str(USER), "GPUCLOUD_CRIU": str(CRIU)},
    )
    assert trial.find_hindrance(chosen) is None
    assert find_inits() <= before


def find_inits() -> set[str]:
    """Return the pids of the first processes of restored programs, on the whole machine."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"carrying/init.py\0{USER}".encode() in (entry / "cmdline").read_bytes():
                found.add(entry.name)
    return found
