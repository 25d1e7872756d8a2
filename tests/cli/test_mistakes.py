"""Mistakes of people and scripts: a message, the right exit code, and no effect elsewhere."""

import re
import socket
import subprocess
from pathlib import Path

import pytest

from gpucloud_cli import access
from gpucloud_cli.claiming import path_of
from gpucloud_cli.declared import documents
from gpucloud_cli.failures import Problem, Usage, exit_code
from tests.cli.commands import Shell, finish, live_claims, new_name
from tests.platform import Platform

NOBODY = "00000000-0000-4000-8000-000000000000"
CLAIM = ("claim", "create", "--core", "10", "--memory", "1GiB", "--uid")


@pytest.mark.parametrize(
    "url", ["http://", "http://[::1", "http://x:99999", "http://x:0", "http://x y", "http://x\x1b[31m/"]
)
def test_an_address_that_names_no_server_is_wrong_usage(url: str) -> None:
    with pytest.raises(Usage):
        access.check_url(url)


@pytest.mark.parametrize("token", ["gpc_ümlaut", "gpc_a.b\nX-Evil: 1", "gpc_\udcff", "gpc_a b", "gpc_\x00"])
def test_a_token_that_no_header_can_carry_is_wrong_usage(token: str, tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "GPUCLOUD_URL": "http://127.0.0.1:1", "GPUCLOUD_TOKEN": token}
    with pytest.raises(Usage, match="This is no token"):
        access.resolve(url=None, token_file=None, environment=environment)


@pytest.mark.parametrize("path", ["{other}/me/", "../../", "claims/../tenants/", "{other}"])
def test_the_token_goes_to_its_server_and_below_the_api_only(olga: Shell, path: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        ended = olga.run("api", "GET", path.format(other=f"http://127.0.0.1:{other.getsockname()[1]}"))
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()
    assert ended.code == 2
    assert "no path below /api/v1/" in ended.err


def test_a_claims_name_cannot_be_a_path_of_something_else() -> None:
    assert path_of("../tenants/acme") == "claims/..%2Ftenants%2Facme/"


@pytest.mark.parametrize(
    ("code", "ends"),
    [("field-missing", 2), ("range-invalid", 2), ("period-invalid", 2), ("impossible-claim", 3), ("out-of-range", 3)],
)
def test_fields_that_are_wrong_by_themselves_are_wrong_usage(code: str, ends: int) -> None:
    assert exit_code(Problem(422, {"type": f"/problems/{code}"})) == ends


def test_errors_of_fields_are_words_and_not_python() -> None:
    problem = Problem(400, {"title": "Invalid fields", "errors": {"scopes": {"0": ["no choice."], "2": ["nor this."]}}})
    assert str(problem) == "Invalid fields:\n  scopes: no choice. nor this."


def test_releasing_what_is_not_there_fails_and_keeps_no_other(max_: Shell, tenant: str, platform: Platform) -> None:
    uid = max_.run(*CLAIM, "--wait", "20s").out.strip()
    ended = max_.run("claim", "release", NOBODY, "../tenants/acme", uid, "--wait", "20s")
    assert ended.code == 1
    assert f"claim {NOBODY} is not released: Not found" in ended.err
    assert f"claim {uid} is released" in ended.err
    assert live_claims(platform, tenant) == []


def test_a_mistyped_option_makes_no_claim(max_: Shell, tenant: str, platform: Platform) -> None:
    ended = max_.run("run", "--core", "10", "--memory", "1GiB", "--limt", "20", "--", "true")
    assert ended.code == 2
    assert "No such option '--limt'" in ended.err
    assert platform.granted("GET", f"claims/?tenant={tenant}")["results"] == []


def test_a_program_without_a_name_is_still_looked_for(max_: Shell, tenant: str, platform: Platform) -> None:
    ended = max_.run("run", "--core", "10", "--memory", "1GiB", "--", "/")
    assert (ended.code, ended.err.splitlines()[-1]) == (126, "gpucloud: /: Permission denied")
    assert [row["name"] for row in platform.granted("GET", f"claims/?tenant={tenant}")["results"]] == ["unnamed"]


def test_a_quota_without_a_limit_does_not_look_like_none(olga: Shell, tenant: str) -> None:
    made = olga.run("quota", "create", "--tenant", tenant, "--resource", "vgpus", "--hard", "unlimited")
    assert re.search(r"^hard +unlimited$", made.out, re.MULTILINE)
    listed = olga.run("quota", "list", "--tenant", tenant, "--resource", "vgpus").out.splitlines()
    assert listed[1].split()[2:] == ["-", "vgpus", "unlimited", "0", "0"]


def test_a_preview_has_no_uid_to_print(max_: Shell) -> None:
    assert max_.run(*CLAIM, "--dry-run").code == 2


def test_a_size_is_of_memory_only(olga: Shell, tenant: str, platform: Platform) -> None:
    ended = olga.run("quota", "create", "--tenant", tenant, "--resource", "gpus", "--hard", "4GiB")
    assert (ended.code, ended.err) == (2, "gpucloud: hard is a size, and gpus is not counted in sizes.\n")
    rows = platform.granted("GET", f"quotas/?tenant={tenant}&resource=core_percent")["results"]
    assert olga.run("quota", "change", str(rows[0]["id"]), "--hard", "1TiB").code == 2
    assert platform.granted("GET", f"quotas/?tenant={tenant}&resource=core_percent")["results"] == rows


def test_bytes_that_are_no_text_are_wrong_usage(olga: Shell) -> None:
    done = subprocess.run(
        [*map(str.encode, olga.line("tenant", "create", new_name("t"), "--name")), b"\xff\xfe"],
        env=olga.environment,
        capture_output=True,
        check=False,
        cwd=olga.home,
    )
    assert done.returncode == 2
    assert b"not text in UTF-8" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_full_disk_is_told(olga: Shell) -> None:
    with Path("/dev/full").open("w") as full:
        ended = finish(olga.start("tenant", "list", "--json", stdout=full))
    assert ended.code == 1
    assert "No space left" in ended.err
    assert "Traceback" not in ended.err


WRONG = """\
apiVersion: gpucloud.io/v1
kind: Tenant
slug: 12
quotas:
  - {resource: core_percent, hard: lots}
  - {resource: vgpus, hard: 4GiB}
limit_ranges:
  - {field: core_request, minimum: 1GiB}
---
- a
"""


def test_what_is_within_a_wrong_tenant_is_named_too(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(WRONG)
    with pytest.raises(Usage) as refused:
        documents.read([str(file)])
    assert re.findall(r"wrong\.yaml:(\d+): ", str(refused.value)) == ["3", "5", "6", "8", "10"]


def test_no_limit_does_not_read_as_none_at_all(olga: Shell, tenant: str, tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    quotas = "quotas: [{resource: core_percent, hard: unlimited}]"
    file.write_text(f"apiVersion: gpucloud.io/v1\nkind: Tenant\nslug: {tenant}\n{quotas}\n")
    shown = olga.run("apply", "-f", str(file), "--dry-run").out
    assert shown == f"~ quota/{tenant}/*/core_percent  hard: 400 → unlimited\n"


def test_a_member_must_be_somebody(olga: Shell, tenant: str) -> None:
    ended = olga.run("member", "create", "--tenant", tenant, "nobody-here", "--role", "viewer")
    assert ended.code == 2
    assert "There is no active user nobody-here. Invite them: gpucloud user invite" in ended.err


def test_the_tenant_of_the_environment_is_meant_where_one_must_be_named(olga: Shell, tenant: str) -> None:
    asked = ("member", "list", "--json")
    assert olga.run(*asked).code == 2
    assert olga.run(*asked, GPUCLOUD_TENANT=tenant).data == []
    assert len(olga.run("tenant", "list", "--json", GPUCLOUD_TENANT=tenant).data) > 0


def test_a_narrow_terminal_cuts_no_uid(olga: Shell, max_: Shell, tenant: str) -> None:
    uid = max_.run(*CLAIM).out.strip()
    line = " ".join(olga.line("claim", "list", "--tenant", tenant))
    done = subprocess.run(
        ["script", "-qec", f"stty cols 40; {line}", "/dev/null"],
        env=olga.environment | {"NO_COLOR": "1", "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert [row.split()[0] for row in done.stdout.splitlines()[1:]] == [uid]
    assert max_.run("claim", "release", uid, "--wait", "20s").code == 0
