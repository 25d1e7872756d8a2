"""The wire format between versions: a server is upgraded before its agents."""

import json
from typing import Any

import msgspec
import pytest

from agent import wire, wire_groups, wire_jobs
from agent.wire_bounds import MAX_DESIRED_BYTES

UID = "00000000-0000-0000-0000-000000000001"
ASSIGNMENT = {
    "uid": UID, "claim_uid": UID, "tenant": "acme", "gpu_uuid": f"GPU-{UID}", "generation": 1, "core_request": 30,
    "core_limit": 50, "memory_bytes": 1, "secret_digest": "0" * 64, "sharing": {"policy": "fair"},
}  # fmt: skip
RUN = {"uid": UID, "claim_uid": UID, "command": ["true"]}
OF_SERVERS: list[dict[str, Any]] = [
    {"type": "welcome", "v": 1, "node_uid": UID, "node_name": "gpu1", "server_time": 1.0},
    {"type": "desired", "v": 1, "frame": 1, "policy": {"audit": "kill"}, "assignments": [ASSIGNMENT], "jobs": [RUN]},
    {"type": "ack", "v": 1, "seq": 1},
    {"type": "stored", "v": 1, "uid": UID, "bytes": 5},
]


def newer(value: Any) -> Any:
    """Return the same message from a server with new fields, at every level."""
    if isinstance(value, dict):
        return {**{name: newer(each) for name, each in value.items()}, "of_tomorrow": {"some": ["thing"]}}
    return [newer(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("frame", OF_SERVERS, ids=lambda frame: frame["type"])
def test_an_agent_passes_over_what_a_newer_server_adds(frame: dict[str, Any]) -> None:
    assert wire.decode_from_server(json.dumps(newer(frame))) == wire.decode_from_server(json.dumps(frame))


@pytest.mark.parametrize("frame", OF_SERVERS, ids=lambda frame: frame["type"])
def test_an_agent_refuses_what_it_may_not_pass_over(frame: dict[str, Any]) -> None:
    with pytest.raises(wire.MalformedFrame):
        wire.decode_from_server(json.dumps({**frame, "v": 2}))


def test_a_server_refuses_what_it_does_not_know() -> None:
    text = wire.encode(wire.Observed(frame=1, assignments=[]))
    with pytest.raises(wire.MalformedFrame, match="of_tomorrow"):
        wire.decode_from_agent(json.dumps(newer(json.loads(text))))


def test_an_agent_reads_as_many_assignments_as_it_takes_whatever_they_are_called() -> None:
    words = dict.fromkeys(("tenant", "claim_name", "pod_uid"), "\x1f" * 200)
    pod = {"namespace": "\x1f" * 63, "name": "\x1f" * 253, "container": "\x1f" * 63}
    longest = {**ASSIGNMENT, **words, "pod": pod, "generation": 2**63 - 1, "memory_bytes": 2**63 - 1}
    longest |= {"present": False, "suspended": True}
    names = {"namespace": "\x1f" * 63, "name": "\x1f" * 253, "pool": "\x1f" * 253, "device": "\x1f" * 63}
    longest["resource_claim"] = {**names, "uid": UID, "request": "\x1f" * 200, "share_id": "\x1f" * 200}
    longest["sharing"] = {"policy": "weighted", "weight": 1000, "best_effort": True, "ceiling": 99, "parts": 16}
    longest["carry"] = {"ticket": {"host": "\x1f" * 253, "port": 65535, "fingerprint": "0" * 64, "secret": "0" * 100}}
    frame = {"type": "desired", "v": 1, "frame": 2**31 - 1, "assignments": [longest]}
    known = wire.decode_from_server(json.dumps(frame))
    assert isinstance(known, wire.Desired)
    cleared = {f"GPU-{UID[:-2]}{number:02d}": 1e11 / 3 for number in range(wire.MAX_GPUS)}
    policy = wire.NodePolicy(audit="fence", cleared=cleared)
    groups = [wire_groups.LONGEST] * wire_groups.MAX_GROUPS
    assignments = known.assignments * wire.MAX_ASSIGNMENTS
    jobs = wire.fit_runs([longest_run()] * (wire.MAX_RUNS + 1))
    assert len(jobs) == wire.MAX_RUNS
    full = wire.Desired(frame=2**31 - 1, policy=policy, mend=False, assignments=assignments, groups=groups, jobs=jobs)
    assert wire.decode_from_server(wire.encode(full)) == full
    assert 0.9 * MAX_DESIRED_BYTES < len(wire.encode(full)) <= MAX_DESIRED_BYTES
    for name in words:
        with pytest.raises(wire.MalformedFrame, match="200"):
            wire.decode_from_server(json.dumps({**frame, "assignments": [{**longest, name: "x" * 201}]}))


def test_a_claim_that_is_not_to_be_suspended_looks_to_an_older_agent_as_before() -> None:
    known = wire.decode_from_server(json.dumps(OF_SERVERS[1]))
    assert isinstance(known, wire.Desired)
    assert "suspended" not in wire.encode(known)
    wanted = msgspec.structs.replace(known.assignments[0], suspended=True)
    again = wire.decode_from_server(wire.encode(msgspec.structs.replace(known, assignments=[wanted])))
    assert isinstance(again, wire.Desired)
    assert again.assignments == [wanted]


def test_an_agent_says_only_of_suspended_claims_what_they_keep() -> None:
    plain = wire.Observation(uid=UID, generation=1, state="in_force")
    assert not {"saved_bytes", "suspend_refused"} & set(
        json.loads(wire.encode(one := observed(plain)))["assignments"][0]
    )
    assert wire.decode_from_agent(wire.encode(one)) == one
    held = wire.Observation(uid=UID, generation=2, state="suspended", saved_bytes=5, suspend_refused="no room")
    assert wire.decode_from_agent(wire.encode(two := observed(held))) == two


def longest_run() -> wire.JobRun:
    """Return a run with the most bytes of which as many fit into a frame as it has room for."""
    run = wire.JobRun(uid=UID, claim_uid=UID, command=["x"])
    rest = wire_jobs.MAX_BYTES // wire.MAX_RUNS - len(msgspec.json.encode(run)) - 1
    return msgspec.structs.replace(run, command=["x" * (rest + 1)])


def observed(one: wire.Observation) -> wire.Observed:
    return wire.Observed(frame=1, assignments=[one])
