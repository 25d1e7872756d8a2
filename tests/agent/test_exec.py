"""`python -m agent exec`: the program's own pid, exit code and signals, or a helpful error."""

import asyncio
import signal
import uuid

import pytest

from agent import wire
from agent.host import processes
from tests.agent.control import Connection, Control
from tests.agent.stage import BUILD, SECRET, Stage
from tests.agent.test_reconcile import changed, put


@pytest.fixture
async def held(stage: Stage, link: Connection) -> wire.Assignment:
    """Put a claim in force."""
    assignment = stage.assignment()
    await put(link, 1, assignment)
    return assignment


async def test_the_exit_code_is_the_programs(stage: Stage, held: wire.Assignment) -> None:
    assert await stage.executed(held.claim_uid, "sh", "-c", "echo out; echo err >&2; exit 37") == (37, "out\n", "err\n")


async def test_the_program_has_the_pid_that_was_registered(stage: Stage, held: wire.Assignment) -> None:
    program = stage.exec(held.claim_uid, "sh", "-c", "echo $$; exec sleep 60")
    assert int(await asyncio.to_thread(program.stdout.readline)) == program.pid
    status = await asyncio.to_thread(stage.status)
    assert status["assignments"][0]["processes"] == [program.pid]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGPIPE])
async def test_signals_are_the_programs(stage: Stage, held: wire.Assignment, number: signal.Signals) -> None:
    program = stage.exec(held.claim_uid, "sh", "-c", "echo up; exec sleep 60")
    await asyncio.to_thread(program.stdout.readline)
    program.send_signal(number)
    assert await asyncio.to_thread(program.wait, 10) == -number


async def test_the_environment_is_the_claims_and_keeps_what_was_there(stage: Stage, held: wire.Assignment) -> None:
    code, out, _ = await stage.executed(
        held.claim_uid,
        "sh",
        "-c",
        'echo "$GPUCLOUD_CLAIM_DIR" "$CUDA_VISIBLE_DEVICES" "$LD_PRELOAD" "$LD_LIBRARY_PATH"',
        LD_PRELOAD="libc.so.6",
        LD_LIBRARY_PATH="/opt/mine",
    )
    directory, devices, preload, path = out.split()
    assert code == 0
    assert directory == str(stage.claim_dir(held))
    assert devices == held.gpu_uuid
    assert preload.startswith("libc.so.6:")
    assert preload.endswith("/libvcuda.so")
    assert path.endswith("/sim:/opt/mine")


async def test_the_program_gets_none_of_what_opened_the_claim(stage: Stage, held: wire.Assignment) -> None:
    secrets = {"GPUCLOUD_TOKEN": "gpc_a.b", "GPUCLOUD_TOKEN_FILE": "/tmp/token"}  # noqa: S108 - never opened
    code, out, _ = await stage.executed(held.claim_uid, "env", **secrets, GPUCLOUD_URL="http://127.0.0.1:1")
    told = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
    assert code == 0
    assert not {"GPUCLOUD_CLAIM_SECRET", *secrets} & set(told)
    # The control: the rest is passed on.
    assert told["GPUCLOUD_URL"] == "http://127.0.0.1:1"
    assert told["GPUCLOUD_AGENT_SOCKET"] == str(stage.run_dir / "agent.sock")


async def test_a_wrong_secret_is_told_at_once(stage: Stage, held: wire.Assignment) -> None:
    code, _, error = await stage.executed(held.claim_uid, "true", secret="wrong")
    assert code == 125
    assert "not the secret of claim" in error


async def test_an_unknown_claim_is_told_after_the_wait(stage: Stage, held: wire.Assignment) -> None:
    code, _, error = await stage.executed(str(uuid.uuid4()), "true", options=("--wait", "0.2"))
    assert code == 125
    assert "is not on this node" in error


async def test_a_claim_that_comes_while_waiting_is_entered(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    late = stage.assignment(gpu=1)
    program = stage.exec(late.claim_uid, "sh", "-c", "exit 3")
    await asyncio.sleep(0.5)
    assert program.poll() is None
    await put(link, 2, held, late)
    assert await asyncio.to_thread(program.wait, 10) == 3


async def test_a_claim_that_failed_says_why(stage: Stage, link: Connection) -> None:
    lost = stage.assignment(gpu_uuid="GPU-00000000-0000-4000-8000-000000000000")
    await link.send(wire.Desired(frame=1, assignments=[lost]))
    await link.state(lost.uid, "failed")
    code, _, error = await stage.executed(lost.claim_uid, "true")
    assert code == 125
    assert "is not on this node" in error


async def test_a_missing_command_is_127_and_one_that_is_no_program_126(stage: Stage, held: wire.Assignment) -> None:
    code, _, error = await stage.executed(held.claim_uid, "no-such-command")
    assert (code, "command not found" in error) == (127, True)
    code, _, error = await stage.executed(held.claim_uid, "/etc/passwd")
    assert (code, "Permission denied" in error) == (126, True)


async def test_bad_usage_is_2(stage: Stage) -> None:
    for arguments in (("not-a-uid", "true"), (str(uuid.uuid4()),)):
        code, _, error = await stage.executed(*arguments)
        assert code == 2
        assert "usage: agent exec" in error


async def test_without_an_agent_it_says_so(stage: Stage) -> None:
    code, _, error = await stage.executed(str(uuid.uuid4()), "true")
    assert code == 125
    assert "No agent answers at" in error


async def test_the_control_plane_is_asked_for_the_secret(stage: Stage, held: wire.Assignment, control: Control) -> None:
    socket = str(stage.run_dir / "agent.sock")
    control.claim_environments[held.claim_uid] = {
        "secret": SECRET,
        "agent_socket": socket,
        "node": "sim-1",
        "LD_PRELOAD": "x",
    }
    token = stage.state_dir / "token"
    token.write_text("gpc_a.b\n")
    variables = {"GPUCLOUD_CLAIM_SECRET": "", "GPUCLOUD_URL": control.url, "GPUCLOUD_TOKEN_FILE": str(token)}
    code, _, error = await stage.executed(held.claim_uid, "sh", "-c", "exit 5", **variables)
    assert (code, error) == (5, "")
    assert control.tokens_seen == ["Bearer gpc_a.b"]
    code, _, error = await stage.executed(str(uuid.uuid4()), "true", **variables)
    assert (code, "Unknown claim" in error) == (125, True)


async def test_a_release_ends_a_program_that_never_touched_a_gpu(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    program = stage.exec(held.claim_uid, "sh", "-c", "echo up; exec sleep 60")
    await asyncio.to_thread(program.stdout.readline)
    await link.send(wire.Desired(frame=2, assignments=[changed(held, present=False)]))
    await link.state(held.uid, "released")
    assert await asyncio.to_thread(program.wait, 10) == -signal.SIGTERM


async def test_a_release_ends_what_a_program_left_behind(stage: Stage, link: Connection, held: wire.Assignment) -> None:
    program = stage.exec(held.claim_uid, "sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!")
    orphan = int(await asyncio.to_thread(program.stdout.readline))
    assert await asyncio.to_thread(program.wait, 10) == 0
    assert processes.find(orphan) is not None
    await link.send(wire.Desired(frame=2, assignments=[changed(held, present=False)]))
    await link.state(held.uid, "released")
    assert processes.find(orphan) is None


async def test_nothing_starts_where_the_limiting_library_is_missing(stage: Stage, control: Control) -> None:
    stage.start(GPUCLOUD_LIBRARY=str(stage.library_without_shim()), GPUCLOUD_SIM_DRIVER=str(BUILD / "sim"))
    link = await control.connection()
    stage.gpus = [gpu.uuid for gpu in (await link.expect(wire.Hello)).gpus]
    held = stage.assignment()
    await put(link, 1, held)
    code, _, error = await stage.executed(held.claim_uid, "true")
    assert (code, "libvcuda.so" in error) == (125, True)
