"""For each policy: no GPU exceeds its core or memory, no label is violated, and no request that fits is refused."""

import random
from dataclasses import replace

import pytest

from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.placement.policies import POLICIES
from apps.scheduling.core.values import GpuState, NodeState, Placed, Request
from tests.scheduling.placement_checker import History

MODELS = ("A10", "H100")


def history(draw: random.Random) -> History:
    nodes = {f"n{number}": NodeState(f"n{number}", (("zone", draw.choice("ab")),)) for number in range(8)}
    gpus = {
        f"{name}-{index}": GpuState(f"{name}-{index}", name, index, MODELS[index % 2], 24, 100, 24, draw.random() < 0.9)
        for name in nodes
        for index in range(draw.randint(1, 6))
    }
    return History(gpus, nodes)


def request(draw: random.Random) -> Request:
    asked = Request(
        draw.choice((1, 1, 1, 2, 3)),
        draw.choice((10, 30, 50, 100)),
        draw.choice((2, 6, 12)),
        draw.choice((None, None, "H100", "A10|H100")),
        tenant=draw.choice(("acme", "globex")),
        node_selector=(("zone", "a"),) if draw.random() < 0.1 else (),
        key=str(draw.random()),
    )
    label = draw.choice((None, None, None, "affinity", "anti_affinity", "exclusion"))
    return replace(asked, **{label: draw.choice("xyz")}) if label else asked  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_history_of_a_busy_fleet_breaks_no_rule(policy: str) -> None:
    draw = random.Random(policy)  # noqa: S311 - a history that can be had again
    told, answers = history(draw), {True: 0, False: 0}
    fleet = Fleet(told.gpus.values(), told.nodes.values(), policy=policy)
    placed: list[tuple[Request, tuple[str, ...]]] = []
    for _ in range(1500):
        if placed and draw.random() < 0.4:
            gone, uuids = placed.pop(draw.randrange(len(placed)))
            fleet.give_back(uuids, gone)
            told.gone(gone, uuids)
            continue
        asked = request(draw)
        fleet.learn(asked)
        answer = fleet.place(asked)
        answers[isinstance(answer, Placed)] += 1
        if isinstance(answer, Placed):
            fleet.take(answer.gpus, asked)
            told.placed(asked, answer.gpus)
            placed.append((asked, answer.gpus))
        else:
            told.refused(asked)
    assert not told.complaints
    assert min(answers.values()) > 100, "a history of nothing but yes, or nothing but no, would show little"


def test_control_the_checker_sees_what_is_wrong() -> None:
    told = History({"a": GpuState("a", "n", 0, "A10", 24, 100, 24)}, {"n": NodeState("n")})
    half = Request(1, 60, 6, tenant="acme", anti_affinity="x")
    told.refused(half)
    told.placed(half, ("a",))
    told.placed(half, ("a",))
    told.placed(replace(half, core_request=10, exclusion="y", anti_affinity=None), ("a",))
    assert [complaint.rpartition(": ")[2] for complaint in told.complaints[1:]] == [
        "its core is promised twice",
        "its core is promised twice",
    ]
    assert "would fit" in told.complaints[0]
