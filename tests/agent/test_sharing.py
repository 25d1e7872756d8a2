"""The policy by which a GPU is shared: from the frame onto the page, changed without a new generation."""

import asyncio
import ctypes
import os
import re
from ctypes import c_void_p
from functools import partial
from typing import get_args

import pytest

from agent import wire
from tests.agent.control import Connection, Control
from tests.agent.stage import ROOT, Stage, eventually
from tests.agent.test_arbiter import connected, install
from tests.agent.test_reconcile import changed, put

HEADER = ROOT / "libvcuda" / "include" / "vcuda_pages.h"


def on_page(stage: Stage, assignment: wire.Assignment) -> wire.Sharing | None:
    slot = stage.slot(assignment)
    return None if slot is None else slot.sharing


def is_on_page(stage: Stage, assignment: wire.Assignment, sharing: wire.Sharing) -> bool:
    return on_page(stage, assignment) == sharing


def is_told(usage: wire.Usage, *, percent: int) -> bool:
    return [one.core_limit_percent for one in usage.assignments] == [percent]


def test_policies_have_the_numbers_of_the_header() -> None:
    numbers = dict(re.findall(r"VCUDA_POLICY_(\w+) = (\d+)", HEADER.read_text()))
    assert {name.lower(): int(number) for name, number in numbers.items()} == {
        name: number for number, name in enumerate(get_args(wire.Policy))
    }


@pytest.mark.parametrize("policy", get_args(wire.Policy))
async def test_each_policy_stands_on_the_page_with_all_that_it_needs(
    stage: Stage, link: Connection, policy: wire.Policy
) -> None:
    sharing = wire.Sharing(policy=policy, weight=1000, best_effort=True, ceiling=90, parts=16)
    held = stage.assignment(sharing=sharing)
    await put(link, 1, held)
    assert on_page(stage, held) == sharing


async def test_a_frame_without_sharing_means_burst(stage: Stage, link: Connection) -> None:
    held = stage.assignment()
    await put(link, 1, held)
    assert on_page(stage, held) == wire.Sharing(policy="burst", weight=1, best_effort=False, ceiling=100, parts=1)


async def test_a_policy_is_changed_in_the_generation_that_is_in_force_and_survives_the_agent(
    stage: Stage, link: Connection, control: Control
) -> None:
    held = stage.assignment()
    await put(link, 1, held)
    fair = changed(held, sharing=wire.Sharing(policy="fair", ceiling=90))
    await link.send(wire.Desired(frame=2, assignments=[fair]))
    await link.expect(wire.Observed, lambda frame: frame.frame == 2)
    assert on_page(stage, held) == fair.sharing
    await stage.kill()
    stage.start()
    await (await control.connection()).state(held.uid, "in_force", 1)
    assert on_page(stage, held) == fair.sharing


async def test_what_is_told_as_limit_is_what_the_policy_makes_of_it(stage: Stage, link: Connection) -> None:
    held = stage.assignment(core_request=20, core_limit=60)
    expected = {
        "burst": (wire.Sharing(), 60),
        "fixed": (wire.Sharing(policy="fixed"), 20),
        "fair": (wire.Sharing(policy="fair", ceiling=90), 90),
        "average": (wire.Sharing(policy="average", parts=4), 25),
        "native": (wire.Sharing(policy="native"), 100),
    }
    for frame, (sharing, alone) in enumerate(expected.values(), start=1):
        await put(link, frame, changed(held, sharing=sharing))
        await eventually(partial(is_on_page, stage, held, sharing))
        link.forget()
        await link.expect(wire.Usage, partial(is_told, percent=alone))


async def test_what_the_arbiter_allots_is_in_the_status_for_as_long_as_it_lives(stage: Stage, control: Control) -> None:
    # Without an arbiter of its own: the test is the arbiter.
    stage.start(GPUCLOUD_LIBRARY=install(stage, None))
    link = await connected(stage)
    held = stage.assignment()
    await put(link, 1, held)
    assert stage.status()["assignments"][0]["allotted_percent"] is None
    calls, page = stage.library.calls, c_void_p()
    made = calls.vcuda_turns_create(os.fsencode(stage.claim_dir(held) / "turns"), ctypes.byref(page))
    assert made >= 0
    assert page.value is not None
    share = ctypes.c_uint32.from_address(page.value + stage.library.turns_at + stage.library.turn_share_at)
    share.value = 3025
    calls.vcuda_turns_heartbeat(page)
    # No turns are given yet: a share that an earlier limit left on the page means nothing.
    assert stage.status()["assignments"][0]["allotted_percent"] == held.core_limit
    calls.vcuda_turns_set(page, 0, ctypes.c_uint64(0), ctypes.c_uint64(0))
    calls.vcuda_turns_heartbeat(page)
    assert stage.status()["assignments"][0]["allotted_percent"] == 30.25
    await asyncio.sleep(1.1)
    assert stage.status()["assignments"][0]["allotted_percent"] is None
