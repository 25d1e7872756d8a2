"""`gpucloud run --group-most`: one command starts a group, and a program for each member that joins it."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.commands import Shell, finish, live_claims
from tests.platform import ROOT, Platform, until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(180)]


def example() -> str:
    """Return the program of docs/elastic.md."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "elastic.md").read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def start(shell: Shell, log: Path, *, least: int, most: int) -> subprocess.Popen[str]:
    script = log.with_name("train.py")
    script.write_text(example().replace("flush=True)", f'flush=True, file=open({str(log)!r}, "a"))'))
    sizes = ("--core", "10", "--memory", "256MiB", "--group-size", str(least), "--group-most", str(most))
    return shell.start("run", *sizes, "--group", "train", "--", sys.executable, str(script))


def test_programs_join_and_follow_the_file_and_all_end_with_the_first(
    max_: Shell, tenant: str, platform: Platform, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    process = start(max_, log, least=2, most=3)
    try:
        until(lambda: log.exists() and "rank 2 of 3" in log.read_text(), seconds=60, what="the third member")
        assert {"rank 0 of 3", "rank 1 of 3"} <= set(re.findall(r"rank \d of \d", log.read_text()))
        shown = max_.run("group", "show", "train", "-o", "json")
        assert '"state": "running"' in shown.out
        newest = platform.granted("GET", f"claims/?tenant={tenant}")["results"][0]["uid"]
        assert max_.run("claim", "release", newest).code == 0
        # The group goes on without it, and grows again.
        until(lambda: "rank 1 of 2" in log.read_text(), seconds=60, what="the others to go on")
        before = log.read_text().count("rank 2 of 3")
        until(lambda: log.read_text().count("rank 2 of 3") > before, seconds=60, what="another member")
    finally:
        process.send_signal(signal.SIGTERM)
        ended = finish(process)
    assert ended.code == 128 + signal.SIGTERM, ended
    assert "has joined as rank 2" in ended.err
    until(lambda: live_claims(platform, tenant) == [], seconds=60, what="the group to end")


def test_a_program_that_fails_is_started_again_and_one_that_ends_well_is_not(
    max_: Shell, tenant: str, platform: Platform, tmp_path: Path
) -> None:
    log, script = tmp_path / "log", tmp_path / "program.py"
    # The first program waits for the others; each of those fails once, and then ends well.
    script.write_text(
        f"import json, os, sys, time\n"
        f"read = lambda: json.load(open(os.environ['GPUCLOUD_GROUP_FILE']))\n"
        f"while (rank := read()['rank']) is None: time.sleep(0.1)\n"
        f"if rank == 0: time.sleep(600)\n"
        f"mine = {str(tmp_path)!r} + '/' + os.environ['GPUCLOUD_CLAIM_DIR'].rpartition('/')[2]\n"
        f"open({str(log)!r}, 'a').write('started\\n')\n"
        f"if not os.path.exists(mine): open(mine, 'w').close(); sys.exit(3)\n"
    )
    sizes = ("--core", "10", "--memory", "256MiB", "--group-size", "2", "--group-most", "2")
    process = max_.start("run", *sizes, "--group", "train", "--", sys.executable, str(script))
    try:
        until(lambda: log.exists() and log.read_text().count("started") == 2, seconds=90, what="a second start")
        time.sleep(10)
        assert log.read_text().count("started") == 2
    finally:
        process.send_signal(signal.SIGTERM)
        ended = finish(process)
    assert len(re.findall(r"has ended \(\d\)", ended.err)) == 2, ended.err


# The first program fails once its peer has gone, or, without `peer`, at once; and also when it is asked to end.
FAILING = """
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
def read():
    with open(os.environ["GPUCLOUD_GROUP_FILE"]) as file:
        return json.load(file)
while (group := read())["rank"] is None or group["world_size"] < 2:
    time.sleep(0.1)
if group["rank"] == 0:
    with open({log!r}, "a") as log:
        log.write("started\\n")
    peers = {{member["claim"] for member in group["members"]}}
    while {peer} and peers <= {{member["claim"] for member in read()["members"]}}:
        time.sleep(0.1)
    sys.exit(3)
time.sleep(600)
"""


@pytest.mark.parametrize("peer", [True, False])
def test_the_commands_own_program_is_started_again_if_it_lost_a_peer(
    max_: Shell, tenant: str, platform: Platform, tmp_path: Path, *, peer: bool
) -> None:
    log, script = tmp_path / "log", tmp_path / "program.py"
    script.write_text(FAILING.format(log=str(log), peer=peer))
    sizes = ("--core", "10", "--memory", "256MiB", "--group-size", "2", "--group-most", "2")
    process = max_.start("run", *sizes, "--group", "train", "--", sys.executable, str(script))
    try:
        until(log.exists, seconds=60, what="the first start")
        if peer:
            newest = platform.granted("GET", f"claims/?tenant={tenant}")["results"][0]["uid"]
            assert max_.run("claim", "release", newest).code == 0
            until(lambda: log.read_text().count("started") == 2, seconds=90, what="a second start")
            process.send_signal(signal.SIGTERM)
    finally:
        ended = finish(process)
    assert ended.code == (1 if peer else 3), ended
    assert log.read_text().count("started") == (2 if peer else 1)
    assert ("is started again" in ended.err) == peer
    until(lambda: live_claims(platform, tenant) == [], seconds=60, what="the group to end")


def test_a_group_that_cannot_start_is_released(max_: Shell, tenant: str, platform: Platform, tmp_path: Path) -> None:
    sizes = ("--core", "10", "--memory", "256MiB", "--group-size", "2", "--group-most", "3", "--count", "64")
    ended = max_.run("run", *sizes, "--group", "train", "--", sys.executable, "-c", "pass")
    assert ended.code != 0
    until(lambda: live_claims(platform, tenant) == [], seconds=60, what="the group to end")
