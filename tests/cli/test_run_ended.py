"""`gpucloud run` where others end the claim: the cause is told, and the exit code is its own."""

import sys

import pytest

from tests.cli.commands import Shell, finish, live_claims
from tests.cli.test_run import RUN, released
from tests.platform import Platform, until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(180)]

# Swallows the signal that ends its claim, and ends well.
SWALLOWER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
os.write(1, b"up\\n")
while True:
    time.sleep(0.1)
"""


def test_a_drain_is_told_at_its_notice_and_its_end_and_has_an_exit_code(
    max_: Shell, tenant: str, platform: Platform
) -> None:
    process = max_.start(*RUN, "--", sys.executable, "-c", SWALLOWER)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    (claim,) = live_claims(platform, tenant)
    node = claim["assignments"][0]["node"]
    try:
        platform.granted("POST", f"nodes/{node}/drain/", {"grace_seconds": 6})
        ended = finish(process)
    finally:
        platform.granted("PATCH", f"nodes/{node}/", {"cordoned": False})
    assert ended.code == 76, ended
    assert "notice: claim" in ended.err
    assert ended.err.count("Its node is being drained") >= 2
    until(lambda: released(platform, tenant), what="the release")


def test_a_release_by_others_is_named_and_has_the_same_exit_code(max_: Shell, tenant: str, platform: Platform) -> None:
    process = max_.start(*RUN, "--", sys.executable, "-c", SWALLOWER)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    (claim,) = live_claims(platform, tenant)
    platform.granted("DELETE", f"claims/{claim['uid']}/")
    ended = finish(process)
    assert ended.code == 76, ended
    assert "Released by " in ended.err
