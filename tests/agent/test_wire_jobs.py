"""Jobs on the wire."""

import json
from typing import Any

import pytest

from agent import wire
from agent.wire_bounds import MAX_DESIRED_BYTES

UID = "00000000-0000-0000-0000-000000000001"


def decode_run(**more: Any) -> wire.JobRun:
    """Return the run of a server's frame with these fields."""
    run = {"uid": UID, "claim_uid": UID, "command": ["true"]} | more
    desired = wire.decode_from_server(
        json.dumps({"type": "desired", "v": 1, "frame": 1, "assignments": [], "jobs": [run]})
    )
    assert isinstance(desired, wire.Desired)
    assert isinstance(desired.jobs, list)
    return desired.jobs[0]


def test_a_run_says_only_what_differs_from_the_default() -> None:
    run = wire.JobRun(uid=UID, claim_uid=UID, command=["true"])
    text = wire.encode(wire.Desired(frame=1, assignments=[], jobs=[run]))
    assert set(json.loads(text)["jobs"][0]) == {"uid", "claim_uid", "command"}
    assert decode_run() == run
    assert "jobs" not in wire.encode(wire.Desired(frame=1, assignments=[]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"command": []}, {"command": ["x"] * 257}, {"command": ["x" * 32_769]}, {"command": ["a\x00b"]},
        {"environment": {"1x": "y"}}, {"environment": {"x=y": "z"}}, {"environment": {"x": "a\x00b"}},
        {"output_bytes": 1023}, {"output_bytes": (64 << 20) + 1}, {"seconds": -1}, {"owner": -1}, {"uid": "../../etc"},
    ],
)  # fmt: skip
def test_a_run_that_no_program_could_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(wire.MalformedFrame):
        decode_run(**wrong)


def test_long_commands_leave_room_for_runs_that_have_started() -> None:
    """Else one tenant's commands could make a frame that no agent takes, or end another's program."""
    long = ["\x01" * 20_000] * 6
    many = [wire.JobRun(uid=UID, claim_uid=UID, command=long) for _ in range(60)]
    started = wire.JobRun(uid=UID, claim_uid=UID, command=long, started=True)
    fitting = wire.fit_runs([*many, started])
    assert fitting[0] is started
    assert 40 < len(fitting) < 60
    desired = wire.Desired(frame=1, assignments=[], jobs=fitting)
    assert len(wire.encode(desired)) < MAX_DESIRED_BYTES
    assert wire.decode_from_server(wire.encode(desired)) == desired
    tiny = wire.JobRun(uid=UID, claim_uid=UID, command=["true"])
    assert len(wire.fit_runs([tiny] * 2000)) == wire.MAX_RUNS


@pytest.mark.parametrize("data", [b"", b"\x00\xff\n", bytes(wire.MAX_CHUNK_BYTES)])
def test_any_bytes_are_output(data: bytes) -> None:
    frame = wire.Output(uid=UID, offset=7, data=data)
    assert wire.decode_from_agent(wire.encode(frame)) == frame


def test_a_piece_of_output_has_a_bound() -> None:
    frame = wire.Output(uid=UID, offset=0, data=bytes(wire.MAX_CHUNK_BYTES + 1))
    with pytest.raises(wire.MalformedFrame, match="65536"):
        wire.decode_from_agent(wire.encode(frame))


@pytest.mark.parametrize("code", [None, 0, 137, 255])
def test_the_state_of_a_run_comes_with_what_is_in_force(code: int | None) -> None:
    state = wire.JobState(uid=UID, state="ended", exit_code=code, started_at=1.0, ended_at=2.0, output_bytes=3)
    frame = wire.Observed(frame=1, assignments=[], jobs=[state])
    assert wire.decode_from_agent(wire.encode(frame)) == frame
    with pytest.raises(wire.MalformedFrame):
        wire.decode_from_agent(wire.encode(frame).replace('"ended"', '"begun"'))
