"""The file of an elastic group in the directories of its claims."""

import json
import threading
import uuid
from typing import Any

from agent import wire
from tests.agent.control import Connection
from tests.agent.stage import Stage, eventually

UID = str(uuid.uuid4())


def told(
    generation: int, *members: wire.Assignment, here: tuple[wire.Assignment, ...], leaves: float | None = None
) -> Any:
    return wire.Group(
        uid=UID, name="train", least=1, most=4, generation=generation, updated_at=1e9,
        members=[
            wire.GroupMember(
                claim=one.claim_uid, node="gpu1", host="gpu1.example.org", gpu_count=1, joined_at=1e9,
                leaves_at=leaves if one is members[-1] else None,
            )
            for one in members
        ],
        claims=[one.claim_uid for one in here],
    )  # fmt: skip


def read(stage: Stage, claim: wire.Assignment) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((stage.claim_dir(claim) / "group.json").read_text())
    return content


async def test_each_claim_reads_its_own_rank_and_all_members_and_when_one_leaves(
    stage: Stage, link: Connection
) -> None:
    first, second = stage.assignment(gpu=0), stage.assignment(gpu=1)
    both = (first, second)
    await link.send(wire.Desired(frame=1, assignments=[*both], groups=[told(1, first, here=both)]))
    await link.state(second.uid, "in_force", 1)
    assert (read(stage, first)["rank"], read(stage, first)["world_size"]) == (0, 1)
    # It is placed, and not yet in.
    assert (read(stage, second)["rank"], read(stage, second)["claim"]) == (None, second.claim_uid)
    assert (stage.claim_dir(first) / "group.json").stat().st_mode & 0o777 == 0o644

    await link.send(wire.Desired(frame=2, assignments=[*both], groups=[told(2, *both, here=both, leaves=2e9)]))
    await eventually(lambda: read(stage, second)["generation"] == 2)
    assert (read(stage, second)["rank"], read(stage, second)["world_size"]) == (1, 2)
    assert [member["leaves_at"] for member in read(stage, first)["members"]] == [None, 2e9]
    assert [member["rank"] for member in read(stage, first)["members"]] == [0, 1]


async def test_a_reader_never_sees_a_part_of_the_file(stage: Stage, link: Connection) -> None:
    claim = stage.assignment(gpu=0)
    await link.send(wire.Desired(frame=1, assignments=[claim], groups=[told(1, claim, here=(claim,))]))
    await link.state(claim.uid, "in_force", 1)
    done, seen, wrong = threading.Event(), set[int](), list[Exception]()

    def follow() -> None:
        while not done.is_set():
            try:
                seen.add(read(stage, claim)["generation"])
            except (OSError, ValueError) as error:
                wrong.append(error)

    reader = threading.Thread(target=follow)
    reader.start()
    for number in range(2, 60):
        await link.send(wire.Desired(frame=number, assignments=[claim], groups=[told(number, claim, here=(claim,))]))
    await eventually(lambda: read(stage, claim)["generation"] == 59)
    done.set()
    reader.join()
    assert wrong == []
    assert len(seen) > 1


async def test_programs_find_the_file_by_a_variable_and_claims_without_a_group_have_none(
    stage: Stage, link: Connection
) -> None:
    grouped, single = stage.assignment(gpu=0), stage.assignment(gpu=1)
    group = told(1, grouped, here=(grouped,))
    await link.send(wire.Desired(frame=1, assignments=[grouped, single], groups=[group]))
    await link.state(single.uid, "in_force", 1)
    path = stage.claim_dir(grouped) / "group.json"
    await eventually(lambda: f"GPUCLOUD_GROUP_FILE={path}\n" in (stage.claim_dir(grouped) / "env").read_text())
    assert "GPUCLOUD_GROUP_FILE" not in (stage.claim_dir(single) / "env").read_text()
    assert not (stage.claim_dir(single) / "group.json").exists()
