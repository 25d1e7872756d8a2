"""The same claim in a MIG instance, in turns, under MPS and by time slices: the same steps, figures and words."""

import shutil
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.agent.test_instances import instances_of
from tests.e2e.kinds import (
    CONTEXT_MIB,
    CORE,
    KINDS,
    LESS_CORE,
    MEMORY_MIB,
    MODEL,
    PRICE,
    PROFILE,
    Fleet,
    User,
    an_hour_ago,
)
from tests.platform import Json, Platform, until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(240)]

# A busy machine disturbs single windows of a second; which kind it is does not.
POINTS = 2.5
# Fields by which two claims that were asked for alike differ.
OWN = {
    "uid",
    "name",
    "assignments",
    "version",
    "timeline",
    "created_at",
    "updated_at",
    "assigned_at",
    "estimated_start_at",
}


@pytest.fixture(scope="module")
def fleet(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    run_dir = Path(tempfile.mkdtemp(prefix="gpucloud-test-", dir="/dev/shm"))
    it = Fleet(platform, tmp_path_factory.mktemp("kinds"), run_dir)
    yield it
    it.close()
    shutil.rmtree(run_dir, ignore_errors=True)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def user(fleet: Fleet, request: pytest.FixtureRequest) -> Iterator[User]:
    it = User(fleet, request.param)
    yield it
    it.close()


def test_the_same_claim_on_every_kind(user: User) -> None:
    """Claims of one name move from kind to kind by release and claim, and leave nothing behind."""
    train, other = create_at_the_limit(user)
    # One program until the end, which wants all of the GPU and takes all of the claim's memory.
    every = ("--interval", "0.5", "--every", "0.5", "--kernel-us", "1000")
    user.start("train", "--memory", f"{MEMORY_MIB - CONTEXT_MIB}MiB", "--grow", "1", *every)
    take_memory_to_the_byte(user)
    work_within(user, train, CORE)
    core = resize(user, train)
    work_within(user, train, core)
    read_metrics(user, train, core)
    suspend(user, train, core)
    refuse_a_move(user, train)
    release(user, train, other)
    read_reports(user, train, other)
    read_audit(user, train)


def create_at_the_limit(user: User) -> tuple[Json, Json]:
    """Create a claim by the API and one by the command; the tenant's next one is refused by both in the same words."""
    assert (user.used(), instances_of(user.fleet.stage)) == ((0, 0), {})
    _, train = user.call("POST", "claims/?wait=60", user.body("train"))
    other = user.data(*user.line("other"), "--wait", "60s")
    assert (train["state"], other["state"]) == ("active", "active"), (train, other)
    assert differences(user.read(train), user.read(other)) <= OWN
    figures = ("core_request", "core_limit", "memory_mib", "isolation", "profile")
    isolation = ("hard", PROFILE) if user.kind.is_instance else ("shared", None)
    assert tuple(train[name] for name in figures) == (CORE, CORE, MEMORY_MIB, *isolation)
    assert user.used() == (2 * CORE, 2 * MEMORY_MIB)
    assert len(instances_of(user.fleet.stage)) == (2 if user.kind.is_instance else 0)
    gpu = user.platform.gpu(train["assignments"][0]["gpu_uuid"])
    assert user.kind.is_instance or gpu["backend"] == user.kind.backend
    status, refused = user.call("POST", "claims/", user.body("third"))
    words = f"Core quota exceeded: requested {CORE} %, 0 % of {2 * CORE} % available; Memory quota exceeded: "
    assert (status, refused["detail"]) == (
        409,
        f"{words}requested {MEMORY_MIB} MiB, 0 MiB of {2 * MEMORY_MIB} MiB available",
    )
    told = user.command(*user.line("third"))
    assert (told.code, refused["detail"] in told.err) == (3, True)
    return train, other


def differences(one: Json, another: Json) -> set[str]:
    """Return the fields in which they differ."""
    return {name for name in one.keys() | another.keys() if one.get(name) != another.get(name)}


def take_memory_to_the_byte(user: User) -> None:
    """The program has all of the claim's memory, which it takes for all of the GPU's, and no byte more."""
    until(lambda: any(line.get("event") == "grow" for line in user.lines()), what="the program to ask for a byte more")
    events = {line["event"]: line["error_name"] for line in user.lines() if "event" in line}
    assert events == {"hold": "CUDA_SUCCESS", "grow": "CUDA_ERROR_OUT_OF_MEMORY"}
    figures = next(line for line in user.lines() if "total_bytes" in line)
    assert (figures["total_bytes"], figures["free_bytes"]) == (MEMORY_MIB << 20, 0)


def work_within(user: User, claim: Json, core: int) -> None:
    """The program computes with so much of the GPU, and the chart has the same, with the claim's limits."""
    least, most = core / 2, core + POINTS
    until(lambda: least < user.share() < most, what=f"the program to have {core} %")

    def charted() -> bool:
        [series] = user.get(f"utilization/?claim={claim['uid']}")["series"]
        used, limit = series["core_percent"], series["core_limit_percent"]
        return bool(used) and least < used[-1] < most and limit[-1] == core

    until(charted, what=f"the chart to have {core} %")
    [series] = user.get(f"utilization/?claim={claim['uid']}")["series"]
    assert (series["memory_mib"][-1], series["memory_limit_mib"][-1]) == (MEMORY_MIB, MEMORY_MIB)
    [series] = user.get(f"utilization/?claim={claim['uid']}&from={an_hour_ago()}")["series"]
    assert max(series["core_percent"]) > 0


def resize(user: User, claim: Json) -> int:
    """Resize the claim live, by the command, or be refused by all that could; return its core then."""
    line = ("claim", "resize", "train", "--core", str(LESS_CORE), "--limit", str(LESS_CORE))
    change = {"core_request": LESS_CORE, "core_limit": LESS_CORE}
    rehearsed = user.call("PATCH", f"claims/{claim['uid']}/?dry_run=true", change)
    told = user.command(*line, "--wait", "60s")
    if user.kind.no_resize is None:
        assert (rehearsed[0], told.code) == (200, 0), told
        assert (user.used()[0], user.read(claim)["core_limit"]) == (CORE + LESS_CORE, LESS_CORE)
        return LESS_CORE
    refused = user.call("PATCH", f"claims/{claim['uid']}/", change)
    assert {status for status, _ in (rehearsed, refused)} == {409}
    assert {answer["detail"] for _, answer in (rehearsed, refused)} == {user.kind.no_resize}
    assert (told.code, user.kind.no_resize in told.err) == (3, True)
    return CORE


def suspend(user: User, claim: Json, core: int) -> None:
    """Suspend the claim by the command and resume it by the API, or be refused by all that could."""
    path = f"claims/{claim['uid']}/suspend/"
    rehearsed = user.call("POST", f"{path}?dry_run=true", {})
    told = user.command("claim", "suspend", "train", "--wait", "60s")
    if (words := user.kind.no_suspension) is not None:
        refused = user.call("POST", path, {})
        assert [status for status, _ in (rehearsed, refused)] == [409, 409]
        assert all(words in answer["detail"] for _, answer in (rehearsed, refused))
        assert (told.code, words in told.err) == (3, True)
        return
    assert (rehearsed[0], told.code) == (200, 0), told
    assert (user.read(claim)["state"], user.used()[0]) == ("suspended", CORE)
    done = user.kernels()
    _, resumed = user.call("POST", f"claims/{claim['uid']}/resume/?wait=60", {})
    assert (resumed["state"], user.used()[0]) == ("active", CORE + core)
    until(lambda: user.kernels() > done, what="the program to go on")


def refuse_a_move(user: User, claim: Json) -> None:
    """There is no other node; a kind that cannot move claims says that first."""
    told = user.command("claim", "move", "train")
    assert told.code == 3, told
    assert (user.kind.no_suspension or "") in told.err


def read_metrics(user: User, claim: Json, core: int) -> None:
    """The metrics have the claim's limits, the tenant's quota and its claims, and the table of `top` its use."""
    series = user.fleet.series()
    of_claim = {name: value for labels, name, value in series if labels.get("pod_name") == claim["uid"]}
    assert of_claim["container_request_gpu_utilization"] == core / 100
    assert of_claim["container_request_gpu_memory"] == of_claim["container_gpu_memory_total"] == MEMORY_MIB
    assert 0 < of_claim["container_gpu_utilization"] < CORE + POINTS
    assert [value for labels, name, value in series if labels.get("claim") == claim["uid"] and "throttled" in name]
    used = {labels["resource"]: value for labels, name, value in series if name == "gpucloud_quota_used"}
    assert used == {"core_percent": CORE + core, "memory_mib": 2 * MEMORY_MIB}
    assert [value for labels, name, value in series if name == "gpucloud_claims"] == [2]
    [row] = [row for row in user.data("top") if row["uid"] == claim["uid"]]
    assert row["memory"] == f"{MEMORY_MIB}/{MEMORY_MIB} MiB"


def release(user: User, train: Json, other: Json) -> None:
    """Release one claim by the command and one by the API: the program ends, and nothing is left of them."""
    assert user.command("claim", "release", "train", "--wait", "60s").code == 0
    _, gone = user.call("DELETE", f"claims/{other['uid']}/?wait=60")
    assert (user.read(train)["state"], gone["state"]) == ("released", "released")
    assert user.program is not None
    user.program.wait(30)
    assert (user.used(), instances_of(user.fleet.stage)) == ((0, 0), {})


def read_reports(user: User, train: Json, other: Json) -> None:
    """Usage report, CSV, command, FOCUS and OpenCost have the same hours and costs of the claims."""
    period = f"tenant={user.fleet.tenant}&from={an_hour_ago()}"
    rows = {row["claim"]: row for row in user.get(f"reports/usage/?by=claim&{period}")["rows"]}
    report = user.data("report", "usage", "--by", "claim", "--from", an_hour_ago())
    told = {row["claim"]: row for row in report["rows"]}
    table = user.get(f"reports/usage/?by=claim&{period}", Accept="text/csv")
    focus = {row["ResourceId"]: row for row in user.get(f"reports/focus/?{period}")["rows"]}
    for claim in (train, other):
        row, ended = rows[claim["uid"]], user.read(claim)
        begun, until_then = (datetime.fromisoformat(ended[name]) for name in ("assigned_at", "released_at"))
        # Half of the core for a part of the time, where it was resized.
        most = CORE / 100 * ((until_then - begun).total_seconds() + 2) / 3600
        hours, cost = float(row["gpu_hours_reserved"]), float(row["cost_reserved"])
        assert most / 3 < hours <= most
        assert (row["gpu_model"], row["gpu_hours_unpriced"]) == (MODEL, "0.000000")
        assert cost == pytest.approx(hours * PRICE, abs=0.01)
        assert told[claim["uid"]]["gpu_hours_reserved"] == row["gpu_hours_reserved"]
        assert f"{claim['uid']},{claim['name']},{row['gpu_hours_reserved']}," in table
        assert float(focus[claim["uid"]]["ConsumedQuantity"]) == pytest.approx(hours, abs=1e-6)
        assert float(focus[claim["uid"]]["BilledCost"]) == pytest.approx(cost, abs=1e-4)
    [step] = user.get("reports/opencost/?window=today&aggregate=pod")["data"]
    assert step[train["uid"]]["gpuHours"] == pytest.approx(float(rows[train["uid"]]["gpu_hours_reserved"]), abs=1e-4)


def read_audit(user: User, claim: Json) -> None:
    found = user.get(f"audit/?tenant={user.fleet.tenant}&object_type=claim&object_id={claim['uid']}")["results"]
    assert [event["action"] for event in reversed(found) if event["action"] in user.kind.acts] == user.kind.acts
