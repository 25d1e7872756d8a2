"""Output for people: names of claims, formats, descriptions, options in errors."""

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
import yaml

from gpucloud_cli import claiming
from gpucloud_cli.amounts import duration_text, seconds, size_text
from gpucloud_cli.failures import Problem
from gpucloud_cli.resources import TABLE
from tests.cli.commands import Shell, live_claims, new_name
from tests.platform import Platform

pytestmark = [pytest.mark.serial, pytest.mark.timeout(180)]

CLAIM = ("claim", "create", "--core", "10", "--memory", "1GiB", "--uid")


def claimed(shell: Shell, name: str) -> str:
    made = shell.run(*CLAIM, "--name", name, "--wait", "30s")
    assert made.code == 0, made
    return made.out.strip()


def test_a_claim_is_addressed_by_its_name_or_the_beginning_of_its_uid(
    max_: Shell, tenant: str, platform: Platform
) -> None:
    uid = claimed(max_, "train")
    for name in ("train", uid[:8], uid[:13].upper(), uid):
        assert max_.data("claim", "show", name)["uid"] == uid, name
    assert max_.data("claim", "resize", "train", "--limit", "40", "--wait", "30s")["core_limit"] == 40
    assert max_.run("claim", "exec", "train", "--", "true").code == 0
    assert max_.data("assignment", "list", "--claim", "train")[0]["claim"] == uid
    ended = max_.run("claim", "release", "train", "--wait", "30s")
    assert (ended.code, ended.err) == (0, f"gpucloud: claim {uid} is released\n")
    assert live_claims(platform, tenant) == []
    # A past claim keeps its name until a new one has it.
    assert max_.data("claim", "show", "train")["uid"] == uid
    again = claimed(max_, "train")
    assert max_.data("claim", "show", "train")["uid"] == again
    assert max_.run("claim", "release", again, "--wait", "30s").code == 0
    none = max_.run("claim", "show", "trian")
    assert (none.code, "There is no claim 'trian'" in none.err) == (1, True)


def test_a_name_of_several_claims_is_refused_with_the_candidates(max_: Shell, tenant: str, platform: Platform) -> None:
    pair = {max_.run(*CLAIM, "--name", "twin").out.strip() for _ in range(2)}
    refused = max_.run("claim", "release", "twin")
    assert refused.code == 2
    assert set(re.findall(r"^  (\S+)  (?:\S+)/twin  \w+$", refused.err, re.MULTILINE)) == pair
    assert len(live_claims(platform, tenant)) == 2
    assert max_.run("claim", "release", *pair, "--wait", "30s").code == 0


def test_another_tenants_claim_has_no_name(max_: Shell, platform: Platform) -> None:
    seeded = platform.granted("GET", "claims/?live=true")["results"][0]
    for name in (seeded["name"], seeded["uid"][:8]):
        assert max_.run("claim", "show", name).code == 1


def test_released_claims_are_listed_on_request_only(max_: Shell, tenant: str) -> None:
    uid = claimed(max_, "past")
    assert [row["uid"] for row in max_.data("claim", "list", "--tenant", tenant)] == [uid]
    assert max_.run("claim", "release", uid, "--wait", "30s").code == 0
    assert max_.data("claim", "list") == max_.data("assignment", "list") == []
    assert [row["uid"] for row in max_.data("claim", "list", "--all")] == [uid]
    assert [row["uid"] for row in max_.data("claim", "list", "--state", "released")] == [uid]
    assert len(max_.data("assignment", "list", "--all")) == 1


def test_every_format_prints_the_same_rows(olga: Shell, tenant: str) -> None:
    listed = ("quota", "list", "--tenant", tenant)
    rows = olga.data(*listed)
    assert json.loads(olga.run(*listed, "-o", "json").out) == rows
    assert yaml.safe_load(olga.run(*listed, "--output", "yaml").out) == rows
    assert olga.run(*listed, "-o", "name").out.split() == [str(row["id"]) for row in rows]
    assert olga.run("tenant", "show", tenant, "-o", "name").out == f"{tenant}\n"
    head = olga.run(*listed, "-o", "wide").out.splitlines()[0]
    assert head.split("  ")[-3:] == ["BORROWING LIMIT", "LENDING LIMIT", "VERSION"]
    assert olga.run(*listed, "-o", "xml").code == 2


def test_a_list_has_a_limit(olga: Shell) -> None:
    cut = olga.run("audit", "list", "--limit", "2", "-o", "name")
    assert (cut.code, len(cut.out.split())) == (0, 2)
    assert "these are the first 2; --limit 0 lists the rest too" in cut.err


@pytest.mark.parametrize(
    "line",
    [
        "claim list --tenant nobody",
        "claim list --pool nowhere",
        "node list --pool nowhere",
        "gpu list --node nowhere",
        "queue list --tenant nobody",
        "queue list --pool nowhere",
        "member list --tenant nobody",
        "member create ada --tenant nobody --role viewer",
        "member remove ada --tenant nobody",
        "quota list --tenant nobody",
        "top --once --tenant nobody",
        "export --tenant nobody",
        "claim create --core 10 --memory 1GiB --tenant nobody",
        "token create ci --tenant nobody",
        "user invite ada --tenant nobody",
        "tenant show nobody",
        "tenant change nobody --weight 2",
        "tenant remove nobody",
        "pool show nowhere",
        "pool rebalance nowhere",
        "node drain nowhere",
        "node change nowhere --repair-drift true",
        "reservation calendar nowhere",
        "reservation calendar default --node nowhere",
    ],
)
def test_an_unknown_tenant_pool_or_node_is_wrong_usage(olga: Shell, line: str) -> None:
    ended = olga.run(*line.split())
    assert (ended.code, ended.out) == (2, ""), ended
    assert re.search(r"nobody|nowhere", ended.err), ended


def test_errors_name_the_commands_options(max_: Shell, olga: Shell, tenant: str) -> None:
    ended = max_.run("claim", "create", "--core", "10", "--memory", "1GiB", "--name", "x" * 64, "--affinity", "a b")
    assert ended.code == 2
    assert re.search(r"^  --name: ", ended.err, re.MULTILINE), ended
    assert re.search(r"^  --affinity: ", ended.err, re.MULTILINE), ended
    missing = max_.run("claim", "create", "--core", "10")
    assert (missing.code, "Give --memory: " in missing.err) == (2, True), missing
    below = max_.run("claim", "create", "--core", "40", "--limit", "30", "--memory", "1GiB")
    assert (below.code, "  --limit: Must not be below --core." in below.err) == (2, True), below
    key = olga.data("token", "create", "ci", "--tenant", tenant)["key"]
    rotated = olga.run("token", "rotate", key, "--overlap", "999d")
    assert re.search(r"^  --overlap: ", rotated.err, re.MULTILINE), rotated
    problem = Problem(
        400, {"title": "Invalid fields", "errors": {"core_percent": ["x"]}}, options={"core_percent": "--core"}
    )
    assert str(problem) == "Invalid fields:\n  --core: x"


def test_what_is_there_already_is_advised_with_a_command(olga: Shell, tenant: str) -> None:
    (quota, _) = olga.data("quota", "list", "--tenant", tenant)
    taken = olga.run("quota", "create", "--tenant", tenant, "--resource", quota["resource"], "--hard", "1")
    assert taken.code == 3
    assert f"gpucloud quota change {quota['id']}" in taken.err
    assert "/api/v1/" not in taken.err


def test_durations_are_taken_and_shown_everywhere(olga: Shell, tenant: str) -> None:
    pool = new_name("p")
    made = olga.data("pool", "create", pool, "--patience", "2h", "--idle-after", "30m", "--preemption-grace", "none")
    assert [made[name] for name in ("patience_seconds", "idle_seconds", "preemption_grace_seconds")] == [
        7200,
        1800,
        None,
    ]
    shown = dict(
        line.split(maxsplit=1) for line in olga.run("pool", "show", pool).out.splitlines() if " " in line.strip()
    )
    assert (shown["patience"].strip(), shown["idle"].strip()) == ("2h", "30m")
    bounds = ("limit-range", "create", "--tenant", tenant, "--field", "time_limit_seconds", "--maximum")
    assert olga.data(*bounds, "2d")["maximum"] == 2 * 86400
    assert olga.run(*bounds, "8GiB").code == 2
    quota = ("quota", "create", "--tenant", tenant, "--resource", "gpus", "--hard")
    assert "is a duration, and gpus is not counted in time" in olga.run(*quota, "2h").err
    file = olga.home / "pool.yaml"
    file.write_text(f"apiVersion: gpucloud.io/v1\nkind: Pool\nname: {pool}\npatience_seconds: 7d\n")
    assert olga.run("apply", "-f", str(file), "--yes").code == 0
    assert olga.data("pool", "show", pool)["patience_seconds"] == 7 * 86400


def test_times_are_given_as_durations_too(max_: Shell, olga: Shell, tenant: str) -> None:
    begun = datetime.now(UTC)
    claim = max_.data(*CLAIM[:-1], "--start-at", "2h")
    assert timedelta(hours=2) <= datetime.fromisoformat(claim["start_at"]) - begun < timedelta(hours=2, minutes=2)
    assert olga.data("audit", "list", "--tenant", tenant, "--since", "1h", "--action", "claim.create")
    assert olga.data("audit", "list", "--tenant", tenant, "--until", "1h") == []
    token = olga.data("token", "create", "ci", "--tenant", tenant, "--expires", "90d")
    assert datetime.fromisoformat(token["expires_at"]) - begun > timedelta(days=90)
    assert olga.run("token", "create", "ci", "--tenant", tenant, "--expires", "999999999d").code == 2
    assert max_.run("claim", "release", claim["uid"], "--wait", "30s").code == 0


@pytest.mark.parametrize("total", [0, 1, 59, 60, 90, 3600, 5400, 86400, 90061, 604800])
def test_a_duration_is_written_as_it_is_read(total: int) -> None:
    assert seconds(duration_text(total)) == total


def test_a_wait_says_what_it_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    claim = {"state": "suspending", "reasons": [], "assignments": []}
    claiming.Watched().tell(claim, 2.0)
    claiming.Watched().tell(claim | {"state": "queued"}, 2.0)
    assert "suspending · its programs leave their GPUs" in (told := capsys.readouterr().err)
    assert "queued · its turn has not come yet" in told


def test_amounts_have_their_units() -> None:
    assert [size_text(512), size_text(1536), size_text(98304)] == ["512 MiB", "1.5 GiB", "96 GiB"]
    assert [duration_text(4.25), duration_text(5400)] == ["4.2s", "1h30m"]


def test_wide_has_more_columns_and_repeats_none() -> None:
    for resource in TABLE:
        assert not set(resource.wide) & set(resource.columns), resource.name


def test_a_claim_is_described_with_conditions_and_events(max_: Shell, olga: Shell) -> None:
    uid = claimed(max_, "told")
    assert max_.run("claim", "resize", "told", "--limit", "60", "--wait", "30s").code == 0
    text = max_.run("claim", "describe", "told").out
    for line in (
        rf"^UID: +{uid}$",
        r"^Created: +\d{4}-\d\d-\d\d [\d:]{8} UTC \(\d+s ago\)$",
        r"^State: +active$",
        r"^  Core request: +10 %$",
        r"^  Core limit: +60 %$",
        r"^  Memory: +1 GiB$",
        r"^  sim-\d +\d +10 % +60 % .* 1 GiB .* in_force +\d+s ago$",
        r"^  Scheduled +yes ",
        r"^  Applied +yes .* generation 2 of 2$",
        r"^  \d+s ago +- +active$",
    ):
        assert re.search(line, text, re.MULTILINE), (line, text)
    # The audit log is for admins: they see who changed what.
    assert re.search(r"claim.resize \(.*core_limit: 10 → 60", olga.run("claim", "describe", uid).out)
    assert max_.run("claim", "release", uid, "--wait", "30s").code == 0


def test_a_waiting_claim_is_described_with_its_reasons(max_: Shell, olga: Shell, tenant: str) -> None:
    (core,) = (row for row in olga.data("quota", "list", "--tenant", tenant) if row["resource"] == "core_percent")
    olga.data("quota", "change", str(core["id"]), "--hard", "0")
    uid = max_.run(*CLAIM, "--name", "waits", "--when-over-quota", "wait").out.strip()
    text = max_.run("claim", "describe", "waits").out
    assert re.search(r"^Reasons:\n  .*quota", text, re.MULTILINE | re.IGNORECASE), text
    assert re.search(r"^  Scheduled +no ", text, re.MULTILINE), text
    assert max_.run("claim", "release", uid, "--wait", "30s").code == 0


def test_a_node_a_pool_and_a_tenant_are_described(olga: Shell, max_: Shell, tenant: str) -> None:
    node = olga.data("node", "list")[-1]
    text = olga.run("node", "describe", node["name"]).out
    assert re.search(rf"^Name: +{node['name']}$", text, re.MULTILINE)
    assert re.search(r"^  Ready +True ", text, re.MULTILINE), text
    assert re.search(r"^  0 +NVIDIA SIM-24 +\d+ % +\S+ [GM]iB +24 GiB +yes$", text, re.MULTILINE), text
    assert "Checks:" not in text, "only those that fail"
    pool = olga.run("pool", "describe", node["pool"]).out
    assert re.search(r"^  Patience: +\S+[hd]$", pool, re.MULTILINE), pool
    assert re.search(r"^  Core allocated: +\d+ of \d+00 %$", pool, re.MULTILINE), pool
    assert re.search(rf"^  {node['name']} +ready ", pool, re.MULTILINE), pool
    described = olga.run("tenant", "describe", tenant).out
    assert re.search(r"^  memory_mib +all pools +96 GiB +0 MiB ", described, re.MULTILINE), described
    assert "quota.set" in described or "quota.create" in described
    # A member of the tenant sees it too, without the events.
    assert max_.run("tenant", "describe", tenant).code == 0
    for kind in ("tenant", "pool", "node"):
        ended = olga.run(kind, "describe", "no-such")
        assert (ended.code, ended.err) == (2, f"gpucloud: There is no {kind} no-such that you may see.\n")


def test_a_gpus_cordon_is_previewed_and_changes_nothing(olga: Shell) -> None:
    node = olga.data("node", "list")[-1]["name"]
    seen = olga.data("gpu", "cordon", f"{node}/3", "--dry-run")
    assert (seen["dry_run"], seen["cordoned"], seen["last"]) == (True, True, False)
    assert olga.data("gpu", "show", seen["uuid"])["cordoned"] is False
