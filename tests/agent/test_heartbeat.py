"""The agent's loop beats, so that a probe restarts an agent that hangs and no other."""

import asyncio
import signal

from agent.rundir import RunDir
from tests.agent.stage import Stage
from tests.heartbeats import moves, stands_still


async def test_an_agent_beats_while_it_waits_for_its_server(stage: Stage) -> None:
    file = RunDir(stage.run_dir).heartbeat
    # Nothing answers there: it is not even enrolled.
    stage.start(server="http://127.0.0.1:9")
    assert await asyncio.to_thread(moves, file)


async def test_an_agent_that_hangs_does_not_beat(stage: Stage) -> None:
    file = RunDir(stage.run_dir).heartbeat
    agent = stage.start()
    await stage.control.connection()
    assert await asyncio.to_thread(moves, file)
    agent.send_signal(signal.SIGSTOP)
    assert await asyncio.to_thread(stands_still, file)
    agent.send_signal(signal.SIGCONT)
    assert await asyncio.to_thread(moves, file)
