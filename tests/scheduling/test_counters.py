"""Counts of several processes are one correct count, despite failures of Redis and of processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import RedisError

from gpucloud import counter_metrics, counters
from gpucloud.counters import Counter

ROOT = Path(__file__).resolve().parents[2]
TRIED = Counter("gpucloud_tried", "For these tests.", ("by",))
PROGRAM = """
import django
django.setup()
from gpucloud import counters
from gpucloud.counters import Counter, Histogram
for _ in range(50):
    Counter("gpucloud_tried", "", ("by",)).add("child")
    Histogram("gpucloud_took", "", (0.1, 1.0)).observe(0.25)
"""
FORK = """
import os, sys
import django
django.setup()
from gpucloud import counters
from gpucloud.counters import Counter
tried = Counter("gpucloud_tried", "", ("by",))
tried.add("parent", amount=7)
child = os.fork()
if child == 0:
    tried.add("child", amount=2)
    counters.write()
    os._exit(0)
os.waitpid(child, 0)
"""
# As a process ends that captured what it logged, when Redis has ended before it.
ENDED_LAST = """
import io, logging
import django
django.setup()
from gpucloud import counters
captured = io.StringIO()
logging.getLogger().addHandler(logging.StreamHandler(captured))
counters.WRITE_SECONDS = 3600.0
counters.Counter("gpucloud_tried", "", ("by",)).add("child")
captured.close()
"""


@pytest.fixture(autouse=True)
def reset_counters() -> Iterator[None]:
    counters.write()
    counters._redis().delete(counters._key())
    yield
    counters.write()
    counters._redis().delete(counters._key())


def run(program: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "gpucloud.settings"}
    return subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env=environment)


def totals() -> dict[tuple[str, tuple[str, ...], str | None], float]:
    return {(count.name, count.values, count.part): count.amount for count in counters.read()}


@pytest.mark.slow
def test_what_processes_count_is_there_when_they_have_ended() -> None:
    for process in [run(PROGRAM) for _ in range(3)]:
        assert process.wait(60) == 0
    TRIED.add("child")
    assert counters.write()
    found = totals()
    assert found["gpucloud_tried", ("child",), None] == 151
    # A quarter of a second lies below the second bound.
    assert found["gpucloud_took", (), "1"] == 150
    assert found["gpucloud_took", (), "sum"] == pytest.approx(37.5)


@pytest.mark.slow
def test_a_forked_child_does_not_write_what_its_parent_counted() -> None:
    assert run(FORK).wait(60) == 0
    assert totals() == {("gpucloud_tried", ("parent",), None): 7, ("gpucloud_tried", ("child",), None): 2}


@pytest.mark.django_db
def test_what_redis_does_not_take_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    TRIED.add("me", amount=3)

    def away() -> Any:
        raise RedisError("away")

    with monkeypatch.context() as patch:
        patch.setattr(counters, "_redis", away)
        assert not counters.write()
        TRIED.add("me")
        [readable, *rest] = counter_metrics.families()
        assert (readable.name, readable.samples[0].value) == ("gpucloud_counters_readable", 0.0)
        assert not {one.name for one in rest} & {kind.name for kind in counters.EVERY}
    assert counters.write()
    assert totals() == {("gpucloud_tried", ("me",), None): 4}


@pytest.mark.slow
def test_a_process_that_ends_after_redis_ends_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "unix:///nonexistent/valkey.sock")
    ended = subprocess.run(
        [sys.executable, "-c", ENDED_LAST],
        cwd=ROOT,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "gpucloud.settings"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_histogram_is_cumulative_and_its_count_is_its_last_bucket() -> None:
    for seconds in (0.004, 0.3, 0.3, 99.0):
        counters.PUSH_SECONDS.observe(seconds)
    family = next(family for family in counter_metrics.families() if family.name == "gpucloud_push_latency_seconds")
    values = {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples}
    assert values["gpucloud_push_latency_seconds_bucket", "0.005"] == 1
    assert values["gpucloud_push_latency_seconds_bucket", "0.5"] == 3
    assert values["gpucloud_push_latency_seconds_bucket", "60.0"] == 3
    assert values["gpucloud_push_latency_seconds_bucket", "+Inf"] == 4
    assert values["gpucloud_push_latency_seconds_count", None] == 4
    assert values["gpucloud_push_latency_seconds_sum", None] == pytest.approx(99.604)


@pytest.mark.django_db
def test_what_another_version_counted_by_other_labels_does_not_break_a_scrape() -> None:
    Counter("gpucloud_rounds", "", ("pool", "more")).add("default", "x")
    counters.ROUNDS.add("default")
    [family] = [family for family in counter_metrics.families() if family.name == "gpucloud_rounds"]
    assert [sample.labels for sample in family.samples] == [{"pool": "default"}]
