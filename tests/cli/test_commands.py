"""List, show, create, change, remove; output streams, and exit codes."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import Shell, live_claims, new_name
from tests.platform import ROOT, Platform
from tests.ports import free_port

pytestmark = [pytest.mark.serial, pytest.mark.timeout(180)]


def test_a_tenant_from_its_making_to_its_end(olga: Shell) -> None:
    slug = new_name("t")
    made = olga.data("tenant", "create", slug, "--name", "Tee", "--weight", "3")
    assert (made["slug"], made["name"], made["weight"]) == (slug, "Tee", 3)
    assert olga.data("tenant", "change", slug, "--weight", "4", "--cohort", "green")["weight"] == 4
    assert olga.data("tenant", "change", slug, "--cohort", "none")["cohort"] is None
    stale = olga.run("tenant", "change", slug, "--weight", "5", "--if-version", "1")
    assert (stale.code, "changed since" in stale.err) == (3, True)
    assert olga.run("tenant", "remove", slug).code == 0
    assert olga.run("tenant", "show", slug).code == 2


def test_a_quota_takes_sizes_and_unlimited(olga: Shell, tenant: str) -> None:
    memory = next(row for row in olga.data("quota", "list", "--tenant", tenant) if row["resource"] == "memory_mib")
    assert olga.data("quota", "change", str(memory["id"]), "--hard", "64GiB")["hard"] == 65536
    assert olga.data("quota", "change", str(memory["id"]), "--hard", "unlimited")["hard"] is None
    made = olga.data("quota", "create", "--tenant", tenant, "--pool", "shared", "--resource", "vgpus", "--hard", "7")
    assert (made["pool"], made["hard"]) == ("shared", 7)
    assert olga.run("quota", "remove", str(made["id"])).code == 0
    again = olga.run("quota", "create", "--tenant", tenant, "--resource", "memory_mib", "--hard", "1")
    assert again.code == 3


@pytest.mark.long
def test_a_quota_is_previewed_and_asked_for(olga: Shell, max_: Shell, tenant: str) -> None:
    core = next(row for row in olga.data("quota", "list", "--tenant", tenant) if row["resource"] == "core_percent")
    preview = olga.data("quota", "change", str(core["id"]), "--hard", "0", "--dry-run")
    assert preview["dry_run"] is True
    asked = ("quota-request", "create", "--tenant", tenant, "--resource", "core_percent", "--amount", "100")
    assert max_.data(*asked, "--reason", "a second paper")["state"] == "requested"
    made = olga.data(*asked, "--reason", "a paper")
    countered = olga.data("quota-request", "counter", made["uid"], "--amount", "50", "--words", "half")
    assert (countered["state"], countered["offered_amount"]) == ("countered", 50)
    assert olga.data("quota-request", "accept", made["uid"])["granted_amount"] == 50
    assert olga.data("quota", "show", str(core["id"]))["hard"] == 450
    assert olga.run("quota-request", "deny", made["uid"], "--words", "late").code == 3


def test_tables_are_for_people_and_whole_in_a_pipe(olga: Shell, tenant: str) -> None:
    listed = olga.run("quota", "list", "--tenant", tenant)
    head, *rows = listed.out.splitlines()
    assert head.split() == ["ID", "TENANT", "POOL", "RESOURCE", "HARD", "USED", "BORROWED"]
    assert [row.split()[1:5] for row in rows] == [
        [tenant, "-", "memory_mib", "98304"],
        [tenant, "-", "core_percent", "400"],
    ]
    assert "\x1b" not in listed.out
    assert listed.err == ""
    assert olga.run("tenant", "show", tenant).out.splitlines()[0].split() == ["slug", tenant]


@pytest.mark.long
def test_a_node_is_added_with_the_command_to_copy(olga: Shell, platform: Platform) -> None:
    name = new_name("n")
    added = olga.run("node", "add", name)
    assert added.code == 0
    assert "GPUCLOUD_ENROL_TOKEN=gpe_" in added.out
    assert added.out.count("\n") == 1
    assert platform.url in added.out
    assert "gpe_" not in added.err
    assert olga.data("node", "cordon", name)["cordoned"] is True
    assert olga.data("node", "uncordon", name)["cordoned"] is False
    assert olga.data("node", "enrol", name)["enrolment_token"].startswith("gpe_")
    assert olga.data("node", "show", name)["state"] == "awaiting-agent"


def test_a_gpu_is_cordoned_by_its_node_and_index_or_its_uuid(olga: Shell) -> None:
    gpu = next(row for row in olga.data("gpu", "list") if row["present"])
    name = f"{gpu['node']}/{gpu['index']}"
    assert olga.data("gpu", "cordon", name)["uuid"] == gpu["uuid"]
    assert olga.data("gpu", "show", gpu["uuid"])["state"] == "cordoned"
    assert olga.data("gpu", "uncordon", gpu["uuid"])["cordoned"] is False
    for wrong in (f"{gpu['node']}/99", "nowhere/0", f"{gpu['node']}/x", "/1"):
        refused = olga.run("gpu", "cordon", wrong)
        assert refused.code == 2, refused
        assert "GPU" in refused.err


def test_a_token_is_shown_once_or_put_in_a_file_of_ones_own(olga: Shell, tenant: str) -> None:
    made = olga.run("token", "create", "ci", "--tenant", tenant, "--scope", "claims:read", "--expires", "1d")
    assert made.out.startswith("gpc_")
    key = made.out.strip().removeprefix("gpc_").split(".")[0]
    ci = Shell(olga.home, GPUCLOUD_URL=olga.environment["GPUCLOUD_URL"], GPUCLOUD_TOKEN=made.out.strip())
    assert ci.data("whoami")["scopes"] == ["claims:read"]
    assert ci.run("tenant", "list").code == 4
    rotated = olga.run("token", "rotate", key, "--overlap", "0")
    assert (rotated.code, rotated.out[:4]) == (0, "gpc_")
    assert ci.run("whoami").code == 4
    ci.environment["GPUCLOUD_TOKEN"] = rotated.out.strip()
    assert ci.run("whoami").code == 0
    key = rotated.out.strip().removeprefix("gpc_").split(".")[0]
    assert olga.run("token", "revoke", key).code == 0
    assert ci.run("whoami").code == 4
    file = olga.home / "ci.token"
    kept = olga.run("token", "create", "ci", "--tenant", tenant, "--out", str(file))
    assert (kept.out, stat.S_IMODE(file.stat().st_mode)) == ("", 0o600)
    assert olga.run("whoami", "--token-file", str(file), "--json").data["operator"] is False


@pytest.mark.long
def test_a_member_comes_and_goes(olga: Shell, tenant: str) -> None:
    assert olga.data("member", "create", "operator", "--tenant", tenant, "--role", "viewer")["role"] == "viewer"
    assert olga.data("member", "list", "--tenant", tenant) == [{"username": "operator", "role": "viewer"}]
    assert olga.run("member", "remove", "operator", "--tenant", tenant).code == 0
    assert olga.data("member", "list", "--tenant", tenant) == []


def test_a_claim_is_made_resized_and_released(max_: Shell, tenant: str, platform: Platform) -> None:
    made = max_.data("claim", "create", "--name", "train", "--core", "20", "--memory", "2GiB", "--wait", "30s")
    assert (made["state"], made["tenant"], made["memory_mib"]) == ("active", tenant, 2048)
    preview = max_.data("claim", "resize", made["uid"], "--limit", "60", "--dry-run")
    assert (preview["dry_run"], preview["core_limit"]) == (True, 60)
    resized = max_.data("claim", "resize", made["uid"], "--limit", "60", "--memory", "3GiB", "--wait", "30s")
    assert (resized["core_limit"], resized["memory_mib"], resized["observed_generation"]) == (60, 3072, 2)
    over = max_.run("claim", "resize", made["uid"], "--memory", "9TiB")
    assert over.code == 3
    rows = max_.data("top", "--once")
    assert [(row["uid"], row["state"]) for row in rows] == [(made["uid"], "active")]
    ended = max_.run("claim", "release", made["uid"], "--wait", "30s")
    assert (ended.code, ended.err.strip()) == (0, f"gpucloud: claim {made['uid']} is released")
    assert live_claims(platform, tenant) == []


def test_a_wait_that_runs_out_is_five_and_the_claim_stays(max_: Shell, tenant: str, platform: Platform) -> None:
    for row in platform.granted("GET", f"quotas/?tenant={tenant}")["results"]:
        platform.granted("PATCH", f"quotas/{row['id']}/", {"hard": 0}, If_Match=f'"{row["version"]}"')
    asked = ("claim", "create", "--core", "10", "--memory", "1GiB")
    refused = max_.run(*asked)
    assert refused.code == 3
    assert "Quota exceeded" in refused.err
    ended = max_.run(*asked, "--when-over-quota", "wait", "--wait", "1s")
    assert ended.code == 5
    assert "still" in ended.err
    assert len(live_claims(platform, tenant)) == 1


@pytest.mark.long
def test_any_route_can_be_called(olga: Shell, tenant: str, tmp_path: Path) -> None:
    assert olga.run("api", "GET", f"quotas/?tenant={tenant}").data["results"][0]["tenant"] == tenant
    slug = new_name("t")
    made = olga.run("api", "post", "tenants/", "--data", "-", stdin=json.dumps({"slug": slug}))
    assert made.data["slug"] == slug
    (tmp_path / "body").write_text("{")
    assert olga.run("api", "POST", "tenants/", "--data", str(tmp_path / "body")).code == 2


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("nothing", 2),
        ("claim create --core 10 --memory 8GiB --tenant ../nobody", 2),
        ("tenant create UPPER", 2),
        pytest.param("tenant show", 2, marks=pytest.mark.long),
        pytest.param("tenant change acme", 2, marks=pytest.mark.long),
        pytest.param("claim create --core 10 --memory 8XB", 2, marks=pytest.mark.long),
        pytest.param("tenant show ..", 2, marks=pytest.mark.long),
        ("tenant show no-such-tenant", 2),
        ("organisation show no-such-organisation", 2),
        ("organisation-quota list --organisation no-such-organisation", 2),
        ("claim show 00000000-0000-4000-8000-000000000000", 1),
        pytest.param("--version", 0, marks=pytest.mark.long),
        ("run --help", 0),
    ],
)
def test_exit_codes(olga: Shell, line: str, code: int) -> None:
    ended = olga.run(*line.split())
    assert ended.code == code, ended
    assert "Traceback" not in ended.err


def test_a_server_that_is_away_is_75(olga: Shell) -> None:
    ended = olga.run("whoami", "--url", f"http://127.0.0.1:{free_port()}", GPUCLOUD_PATIENCE="1s")
    assert (ended.code, ended.out) == (75, "")
    assert "does not answer" in ended.err


def test_help_says_the_exit_codes(olga: Shell) -> None:
    said = olga.run("--help").out
    for code in (0, 1, 2, 3, 4, 5, 75, 130):
        assert f"\n  {code:>5}  " in said


def test_who_has_enough_of_a_list_is_no_error_in_words(olga: Shell) -> None:
    """`| head` may also end after the last word: here the reader is gone before the first."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            olga.line("audit", "list", "--json"),
            env=olga.environment,
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    # The note that there are more is printed in any case.
    assert [line for line in done.stderr.splitlines() if "the rest too" not in line] == []


def test_it_is_installed_alone_by_pip(tmp_path: Path, olga: Shell) -> None:
    """The wheel has the command and all its modules, and needs nothing else of this repository."""
    alone = tmp_path / "alone"
    options = ["-q", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--target", str(alone)]
    pip = [sys.executable, "-m", "pip", "install", *options, str(ROOT / "cli")]
    subprocess.run(pip, check=True, capture_output=True, text=True)
    environment = olga.environment | {"PYTHONPATH": str(alone)}
    command = [sys.executable, "-P", str(alone / "bin" / "gpucloud"), "whoami"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "operator" in done.stdout


def test_the_report_of_usage_is_a_table_or_json(olga: Shell, max_: Shell, tenant: str) -> None:
    body = olga.data("report", "usage", "--by", "person", "--tenant", tenant)
    assert (body["rows"], body["total"]["gpu_hours_reserved"]) == ([], "0.000000")
    table = max_.run("report", "usage", "--by", "claim", "--from", "2026-01-01T00:00:00Z")
    assert (table.code, table.out.split()[:3]) == (0, ["TENANT", "NAME", "OWNER"])
    assert "0.000000 GPU-hours reserved, 0.0000 EUR" in table.err
    assert "from: Datetime has wrong format" in olga.run("report", "usage", "--from", "soon").err
    assert olga.run("report", "usage", "--by", "colour").code == 2


def test_the_report_of_efficiency_is_a_table_or_json(olga: Shell, max_: Shell, tenant: str) -> None:
    body = olga.data("report", "efficiency", "--by", "claim", "--range", "day", "--tenant", tenant)
    assert (body["by"], body["range"], len(body["trend"]), body["rows"]) == ("claim", "day", 24, [])
    table = max_.run("report", "efficiency", "--person", "anna")
    assert (table.code, table.out.split()) == (
        0, ["NAME", "GPU", "HOURS", "RESERVED", "GPU", "HOURS", "USED", "GPU", "HOURS", "UNUSED", "PERCENT"],
    )  # fmt: skip
    assert "0 of 0 allocated GPU-hours were not used" in table.err
    assert olga.run("report", "efficiency", "--tenant", "nowhere").code == 1
    assert olga.run("report", "efficiency", "--range", "year").code == 2
