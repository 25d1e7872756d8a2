"""`apply` and `export`: files compared with the server; nothing is overwritten, and reports are complete."""

import os
import pty
import subprocess
from pathlib import Path

import pytest
import yaml

from gpucloud_cli.access import Access
from gpucloud_cli.api import Api
from gpucloud_cli.declared import documents, plan, present
from gpucloud_cli.declared.carrying_out import carry_out, report
from gpucloud_cli.declared.kinds import TENANT
from tests.cli.commands import Shell, new_name
from tests.platform import Platform

pytestmark = [pytest.mark.serial, pytest.mark.timeout(180)]


def write(shell: Shell, text: str, name: str = "tenants.yaml") -> str:
    path = shell.home / name
    path.write_text(text)
    return str(path)


def wanted(slug: str, *, core: int = 400, more: str = "") -> str:
    return f"""\
apiVersion: gpucloud.io/v1
kind: Tenant
slug: {slug}
weight: 3
quotas:
  - {{resource: core_percent, hard: {core}}}
  - {{resource: memory_mib, hard: 64GiB}}
members:
  - {{username: operator, role: viewer}}
{more}"""


def test_a_tenant_is_made_changed_and_then_as_it_should_be(olga: Shell) -> None:
    slug = new_name("a")
    file = write(olga, wanted(slug))
    shown = olga.run("apply", "-f", file, "--dry-run")
    assert shown.code == 0
    assert shown.out.splitlines() == [
        f"+ tenant/{slug}  weight: 3",
        f"+ quota/{slug}/*/core_percent  hard: 400",
        f"+ quota/{slug}/*/memory_mib  hard: 65536",
        f"+ member/{slug}/operator  role: viewer",
    ]
    assert olga.run("tenant", "show", slug).code == 2
    assert olga.run("apply", "-f", file, "--yes").code == 0
    assert {row["resource"]: row["hard"] for row in olga.data("quota", "list", "--tenant", slug)} == {
        "core_percent": 400,
        "memory_mib": 65536,
    }
    again = olga.run("apply", "-f", file, "--yes")
    assert (again.code, again.out, again.err) == (0, "", "gpucloud: no changes\n")
    changed = olga.run("apply", "-f", write(olga, wanted(slug, core=300).replace("viewer", "admin")), "--yes")
    assert changed.out.splitlines() == [
        f"~ quota/{slug}/*/core_percent  hard: 400 → 300",
        f"~ member/{slug}/operator  role: viewer → admin",
    ]
    assert olga.data("member", "list", "--tenant", slug) == [{"username": "operator", "role": "admin"}]


@pytest.mark.long
def test_what_a_list_does_not_name_goes_with_prune_only(olga: Shell) -> None:
    slug = new_name("a")
    assert olga.run("apply", "-f", write(olga, wanted(slug)), "--yes").code == 0
    text = f"apiVersion: gpucloud.io/v1\nkind: Tenant\nslug: {slug}\n"
    # A list that is left out is not compared.
    assert olga.run("apply", "-f", write(olga, text), "--yes", "--prune").err == "gpucloud: no changes\n"
    file = write(olga, text + "members: []\nquotas: [{resource: core_percent, hard: 400}]\n")
    kept = olga.run("apply", "-f", file, "--yes")
    assert kept.out == ""
    assert f"left alone without --prune: quota/{slug}/*/memory_mib" in kept.err
    pruned = olga.run("apply", "-f", file, "--yes", "--prune", "--json")
    assert [(change["action"], change["what"], change["outcome"]) for change in pruned.data] == [
        ("remove", f"quota/{slug}/*/memory_mib", "applied"),
        ("remove", f"member/{slug}/operator", "applied"),
    ]
    assert len(olga.data("quota", "list", "--tenant", slug)) == 1


@pytest.mark.long
def test_limits_of_claims_and_of_members_are_declared_too(olga: Shell) -> None:
    slug = new_name("a")
    more = """\
limit_ranges:
  - {field: memory_mib, maximum: 8GiB, default: 1GiB}
member_limits:
  - {member: operator, resource: vgpus, hard: 2}
  - {resource: vgpus, hard: 1}
"""
    assert olga.run("apply", "-f", write(olga, wanted(slug, more=more)), "--yes").code == 0
    changed = olga.run("apply", "-f", write(olga, wanted(slug, more=more.replace("8GiB", "9GiB"))), "--yes")
    assert changed.out == f"~ limit-range/{slug}/*/memory_mib  maximum: 8192 → 9216\n"
    without = olga.run(
        "apply",
        "-f",
        "-",
        "--yes",
        "--prune",
        stdin=f"""\
apiVersion: gpucloud.io/v1
kind: Tenant
slug: {slug}
members: []
limit_ranges: []
member_limits: []
""",
    )
    assert without.out.splitlines() == [
        f"- limit-range/{slug}/*/memory_mib  minimum: none, maximum: 9216, default: 1024",
        f"- member-limit/{slug}/*/vgpus  hard: 1",
        f"- member-limit/{slug}/operator/vgpus  hard: 2",
        f"- member/{slug}/operator  role: viewer",
    ]
    assert without.code == 0, without


def test_what_is_exported_is_applied_as_no_change(olga: Shell) -> None:
    slug = new_name("a")
    assert olga.run("apply", "-f", write(olga, wanted(slug)), "--yes").code == 0
    quota = olga.data("quota", "list", "--tenant", slug)[0]
    assert olga.run("quota", "change", str(quota["id"]), "--hard", "unlimited").code == 0
    everything = olga.run("export")
    assert everything.code == 0
    assert {document["kind"] for document in yaml.safe_load_all(everything.out)} - {"Organisation"} == {
        "Pool",
        "Tenant",
    }
    again = olga.run("apply", "-f", "-", "--yes", "--prune", stdin=everything.out)
    assert (again.code, again.out, again.err) == (0, "", "gpucloud: no changes\n")
    directory = olga.home / "platform" / "teams"
    directory.mkdir(parents=True)
    assert olga.run("export", "--tenant", slug, "--out", str(directory / "one.yaml")).code == 0
    assert olga.run("apply", "-f", str(olga.home / "platform"), "--dry-run").err == "gpucloud: no changes\n"
    # The control: it detects a difference.
    text = (directory / "one.yaml").read_text().replace("weight: 3", "weight: 4")
    assert olga.run("apply", "-f", write(olga, text), "--dry-run").out == f"~ tenant/{slug}  weight: 3 → 4\n"


@pytest.mark.long
def test_a_pool_is_made_and_its_sharing_changed(olga: Shell) -> None:
    name = new_name("p")
    text = f"apiVersion: gpucloud.io/v1\nkind: Pool\nname: {name}\nsharing_policy: fair\n"
    assert olga.run("apply", "-f", write(olga, text), "--yes").out == f"+ pool/{name}  sharing_policy: fair\n"
    changed = olga.run("apply", "-f", write(olga, text + "core_ceiling: 90\n"), "--yes")
    assert changed.out == f"~ pool/{name}  core_ceiling: 100 → 90\n"


WRONG = """\
apiVersion: gpucloud.io/v1
kind: Tenant
slug: acme
quotas:
  - {resource: cores, hard: 1}
  - {resource: gpus}
  - {resource: vgpus, hard: 8XB}
  - {resource: vgpus, hard: 1}
  - {resource: vgpus, hard: 2}
members: anna
---
apiVersion: gpucloud.io/v1
kind: Tenant
slug: globex
wieght: 3
weight: many
---
apiVersion: gpucloud.io/v2
kind: Tenant
---
apiVersion: gpucloud.io/v1
kind: Job
"""


def test_every_mistake_is_named_with_its_file_and_line(olga: Shell) -> None:
    file, other = write(olga, WRONG), write(olga, "a: [1\n", "broken.yaml")
    ended = olga.run("apply", "-f", file, "-f", other, "--yes")
    assert ended.code == 2
    for mistake in (
        f"{file}:5: resource must be one of core_percent, memory_mib, vgpus, gpus, host_memory_mib, or MIG instances",
        f"{file}:6: hard is missing from this quota",
        f"{file}:7: hard '8XB' is no size",
        f"{file}:9: quota/acme/*/vgpus stands already in {file}:8",
        f"{file}:10: members must be a list",
        f"{file}:15: wieght is no field of a tenant; known are: slug, name, weight, cohort, organisation, remote",
        f"{file}:16: weight must be a whole number, and 'many' is none",
        f"{file}:18: apiVersion must be gpucloud.io/v1",
        f"{file}:22: kind must be one of Pool, Organisation, Tenant",
        f"{other}:2: ",
    ):
        assert mistake in ended.err, ended.err


def test_without_a_terminal_nothing_is_applied_unasked(olga: Shell) -> None:
    slug = new_name("a")
    ended = olga.run("apply", "-f", write(olga, wanted(slug)))
    assert ended.code == 2
    assert "give --yes" in ended.err
    assert olga.run("tenant", "show", slug).code == 2


@pytest.mark.long
@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"y\n", 0)])
def test_on_a_terminal_it_asks(olga: Shell, answer: bytes, code: int) -> None:
    slug = new_name("a")
    ours, its = pty.openpty()
    line = olga.line("apply", "-f", write(olga, wanted(slug)))
    process = subprocess.Popen(line, env=olga.environment, stdin=its, stderr=its, stdout=subprocess.PIPE)
    os.write(ours, answer)
    out, _ = process.communicate(timeout=60)
    for end in (ours, its):
        os.close(end)
    assert process.returncode == code
    assert f"+ tenant/{slug}" in out.decode()
    assert (olga.run("tenant", "show", slug).code == 0) == (code == 0)


def test_what_somebody_else_changed_is_not_overwritten(olga: Shell, platform: Platform) -> None:
    slug = new_name("a")
    assert olga.run("apply", "-f", write(olga, wanted(slug)), "--yes").code == 0
    declared = documents.read(
        [write(olga, wanted(slug, core=100).replace("weight: 3", "weight: 9").replace("64GiB", "32GiB"))]
    )
    with Api(Access(platform.url, platform.token), patience_seconds=1) as api:
        planned = plan.make(declared, present.document(api, TENANT, slug), prune=False)
        quota = platform.granted("GET", f"quotas/?tenant={slug}&resource=core_percent")["results"][0]
        platform.granted("PATCH", f"quotas/{quota['id']}/", {"hard": 777}, If_Match=f'"{quota["version"]}"')
        outcome = carry_out(api, planned.changes, say=lambda words: None)
    assert [str(change.who) for change in outcome.applied] == [f"tenant/{slug}"]
    stopped = report(outcome)
    assert stopped.exit == 3
    assert str(stopped).splitlines() == [
        "stopped after 1 of 3 changes",
        f"failed: ~ quota/{slug}/*/core_percent  hard: 400 → 100",
        f"  quota/{slug}/*/core_percent was changed by somebody else since it was read: hard was 400 and is 777",
        f"not tried: ~ quota/{slug}/*/memory_mib  hard: 65536 → 32768",
        "Apply again to go on: what is done stays done.",
    ]
    hard = {row["resource"]: row["hard"] for row in olga.data("quota", "list", "--tenant", slug)}
    assert hard == {"core_percent": 777, "memory_mib": 65536}


def test_a_refusal_in_the_middle_is_told_exactly(olga: Shell) -> None:
    slug = new_name("a")
    text = wanted(slug).replace("operator", "nobody-of-this-name")
    ended = olga.run("apply", "-f", write(olga, text), "--yes", "--json")
    assert ended.code == 2
    assert [change["outcome"] for change in ended.data] == ["applied", "applied", "applied", "failed"]
    assert "stopped after 3 of 4 changes" in ended.err
    assert "username" in ended.err


@pytest.mark.long
def test_a_token_that_may_not_is_four(max_: Shell, tenant: str) -> None:
    file = write(max_, f"apiVersion: gpucloud.io/v1\nkind: Tenant\nslug: {tenant}\nweight: 9\n")
    assert max_.run("apply", "-f", file, "--dry-run").out == f"~ tenant/{tenant}  weight: 1 → 9\n"
    assert max_.run("apply", "-f", file, "--yes").code == 4
    assert max_.run("export").code == 0


def test_a_file_that_is_not_there_is_wrong_usage(olga: Shell, tmp_path: Path) -> None:
    assert olga.run("apply", "-f", str(tmp_path / "none.yaml")).code == 2
    assert olga.run("apply", "-f", str(tmp_path / "olga")).code == 2


def tree(top: str, *, core: int = 800, place: str = "physics", below: str = "") -> str:
    """Return a tenant, its department and the organisation above, the lowest first."""
    return f"""\
apiVersion: gpucloud.io/v1
kind: Tenant
slug: {top}-optics
organisation: {top}-{place}
---
apiVersion: gpucloud.io/v1
kind: Organisation
slug: {top}-physics
parent: {top}
quotas:
  - {{resource: core_percent, hard: {core}}}
{below}---
apiVersion: gpucloud.io/v1
kind: Organisation
slug: {top}
name: University
quotas: []
"""


def test_a_tree_of_organisations_is_made_from_the_top_and_changed(olga: Shell) -> None:
    top = new_name("u")
    shown = olga.run("apply", "-f", write(olga, tree(top)), "--dry-run")
    assert shown.out.splitlines() == [
        f"+ organisation/{top}  name: University",
        f"+ organisation/{top}-physics  parent: {top}",
        f"+ organisation-quota/{top}-physics/*/core_percent  hard: 800",
        f"+ tenant/{top}-optics  organisation: {top}-physics",
    ]
    assert olga.run("organisation", "show", top).code != 0
    assert olga.run("apply", "-f", write(olga, tree(top)), "--yes").code == 0
    assert olga.run("apply", "-f", write(olga, tree(top)), "--yes", "--prune").err == "gpucloud: no changes\n"
    # A department and a larger quota first, then the move; a smaller quota last.
    more = "  - {resource: gpus, hard: 4}\n"
    new = tree(top, core=400, place="chemistry", below=more).replace(f"parent: {top}\n", f"parent: {top}-science\n")
    for slug, parent in (("chemistry", f"{top}-science"), ("science", top)):
        new += f"---\napiVersion: gpucloud.io/v1\nkind: Organisation\nslug: {top}-{slug}\nparent: {parent}\n"
    file = write(olga, new)
    changed = olga.run("apply", "-f", file, "--yes")
    assert changed.out.splitlines() == [
        f"+ organisation/{top}-science  parent: {top}",
        f"+ organisation/{top}-chemistry  parent: {top}-science",
        f"~ organisation/{top}-physics  parent: {top} → {top}-science",
        f"+ organisation-quota/{top}-physics/*/gpus  hard: 4",
        f"~ tenant/{top}-optics  organisation: {top}-physics → {top}-chemistry",
        f"~ organisation-quota/{top}-physics/*/core_percent  hard: 800 → 400",
    ], changed
    # What is exported is applied as no change, and is written from the top.
    exported = olga.run("export").out
    there = [one["slug"] for one in yaml.safe_load_all(exported) if one["kind"] == "Organisation"]
    ours = [slug for slug in there if slug.startswith(top)]
    assert ours == [top, f"{top}-science", f"{top}-chemistry", f"{top}-physics"]
    assert olga.run("apply", "-f", "-", "--yes", "--prune", stdin=exported).err == "gpucloud: no changes\n"
    pruned = olga.run("apply", "-f", write(olga, new.replace(more, "")), "--yes", "--prune")
    assert pruned.out == f"- organisation-quota/{top}-physics/*/gpus  hard: 4\n"


def test_what_the_server_refuses_of_a_tree_is_told(olga: Shell) -> None:
    top = new_name("u")
    assert olga.run("apply", "-f", write(olga, tree(top)), "--yes").code == 0
    circle = tree(top).replace("name: University", f"parent: {top}-physics")
    ended = olga.run("apply", "-f", write(olga, circle), "--yes")
    assert ended.code == 3
    assert f"{top}-physics is {top} or below it: choose another parent" in ended.err
    unknown = olga.run("apply", "-f", write(olga, tree(top).replace(f"parent: {top}", "parent: nowhere")), "--yes")
    assert unknown.code == 2
    assert "nowhere" in unknown.err


def test_what_is_declared_of_organisations_is_read_with_its_mistakes(olga: Shell) -> None:
    file = write(olga, tree("u").replace("hard: 800", "hart: 800").replace("name: University", "name: 7"))
    ended = olga.run("apply", "-f", file, "--yes")
    assert f"{file}:11: hart is no field of a quota of an organisation; known are: pool, resource, hard" in ended.err
    assert f"{file}:16: name must be a text, and 7 is none (quote it)" in ended.err
