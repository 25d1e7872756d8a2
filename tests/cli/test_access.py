"""The server's address and the token; only `login` needs a server."""

import functools
import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from deploy import command_schema
from gpucloud_cli import access, amounts, fields
from gpucloud_cli.failures import Exit, Failure, Problem, Usage, exit_code
from gpucloud_cli.fields import CLAIM_FIELDS
from gpucloud_cli.main import build
from gpucloud_cli.resources import BY_NAME, TABLE, Resource
from tests.cli.commands import Shell
from tests.platform import ROOT, Platform

URL = "https://gpucloud.example.org"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "GPUCLOUD_CONFIG": str(tmp_path / "config.json")}


def saved(home: dict[str, str], **facts: str) -> Path:
    path = Path(home["GPUCLOUD_CONFIG"])
    access.write_private(path, json.dumps(facts))
    return path


def resolved(environment: dict[str, str], url: str | None = None, token_file: str | None = None) -> access.Access:
    return access.resolve(url=url, token_file=token_file, environment=environment)


def test_flags_come_before_environment_and_environment_before_the_file(home: dict[str, str], tmp_path: Path) -> None:
    saved(home, url=URL, token="gpc_file")
    assert resolved(home) == access.Access(URL, "gpc_file")
    environment = home | {"GPUCLOUD_TOKEN": "gpc_environment", "GPUCLOUD_URL": "http://other/"}
    assert resolved(environment) == access.Access("http://other", "gpc_environment")
    (tmp_path / "t").write_text("gpc_flag\n")
    assert resolved(environment, url=URL, token_file=str(tmp_path / "t")) == access.Access(URL, "gpc_flag")
    kept = home | {"GPUCLOUD_TOKEN_FILE": str(tmp_path / "t")}
    assert resolved(kept).token == "gpc_flag"


def test_the_files_token_is_for_its_server_only(home: dict[str, str]) -> None:
    saved(home, url=URL, token="gpc_file")
    with pytest.raises(access.NotSignedIn, match=r"is for https://gpucloud\.example\.org, not for http://stranger"):
        resolved(home, url="http://stranger")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_can_read_is_refused(home: dict[str, str], mode: int) -> None:
    saved(home, url=URL, token="gpc_file").chmod(mode)
    with pytest.raises(Failure, match="others can read it"):
        resolved(home)


def test_a_file_of_nonsense_is_refused(home: dict[str, str]) -> None:
    for text in ("{", "[]", '{"url": 1}'):
        path = saved(home)
        path.write_text(text)
        with pytest.raises(Failure, match=r"config\.json"):
            resolved(home)


@pytest.mark.parametrize("url", ["", "gpucloud.example.org", "ftp://x"])
def test_an_address_must_be_one(home: dict[str, str], url: str) -> None:
    with pytest.raises(Usage):
        resolved(home | {"GPUCLOUD_TOKEN": "x"}, url=url)


@pytest.mark.serial
def test_login_keeps_what_works_and_logout_forgets_it(platform: Platform, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    config = tmp_path / ".config" / "gpucloud" / "config.json"
    assert shell.run("whoami").code == 2
    assert shell.run("login", platform.url, stdin="gpc_wrong.wrong\n").code == 4
    assert not config.exists()
    assert shell.run("login", platform.url).code == 2
    done = shell.run("login", platform.url, stdin=f"{platform.token}\n")
    assert done.code == 0, done
    assert platform.token not in done.out + done.err
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert shell.data("whoami")["operator"] is True
    assert shell.run("logout").code == 0
    assert platform.token not in config.read_text()
    assert shell.run("whoami").code == 4


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("8192", 8192),
        ("8192MiB", 8192),
        ("8GiB", 8192),
        ("8gib", 8192),
        ("0.5GiB", 512),
        ("1 TiB", 1 << 20),
        ("8G", 8192),
    ],
)
def test_sizes(text: str, mib: int) -> None:
    assert amounts.mib(text) == mib


@pytest.mark.parametrize("text", ["", "8GB", "-1", "0.0001GiB", "8XB", "1e3", "8 8", "9" * 99, "10m"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        amounts.mib(text)


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("2d", 172800)])
def test_durations(text: str, seconds: int) -> None:
    assert amounts.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "10x", "1h30", "-5s", "1.5h", "9" * 30])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="no duration"):
        amounts.seconds(text)


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, 2), (401, 4), (403, 4), (404, 1), (409, 3), (412, 3), (422, 3), (428, 3), (429, 75), (500, 75), (503, 75)],
)
def test_each_status_has_its_exit_code(status: int, code: Exit) -> None:
    assert exit_code(Problem(status, {"title": "x"})) == code


@functools.cache
def document() -> dict[str, Any]:
    found: dict[str, Any] = yaml.load((ROOT / "docs" / "openapi.yaml").read_text(), Loader=yaml.CSafeLoader)
    return found


def schema(name: str) -> dict[str, Any]:
    found = document()["components"]["schemas"][name]["properties"]
    assert isinstance(found, dict)
    return found


def operation(path: str, method: str) -> dict[str, Any]:
    found = document()["paths"][f"/api/v1/{path}"][method]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("resource", TABLE, ids=lambda resource: resource.name)
def test_every_column_is_the_apis(resource: Resource) -> None:
    """An unknown name would show nothing."""
    path = resource.path.replace("{parent}", "{name}" if resource.parent == "pool" else "{slug}")
    page = operation(path, "get")["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
    item = schema(page.rpartition("/")[2])["results"]["items"]["$ref"]
    shown = {column.partition(".")[0] for column in (*resource.columns, *resource.wide)} | {resource.key}
    assert shown <= set(schema(item.rpartition("/")[2]))


def test_the_commands_fields_are_made_from_the_document() -> None:
    """Regenerate them with `make openapi`."""
    written = command_schema.WRITTEN.read_text(encoding="utf-8")
    assert written == command_schema.render((ROOT / "docs" / "openapi.yaml").read_text(encoding="utf-8"))


def test_an_option_has_the_types_bounds_and_choices_of_the_api() -> None:
    pool = {field.name: field.kind for field in BY_NAME["pool"].fields}
    assert isinstance(pool["sharing_policy"], click.Choice)
    assert "weighted" in pool["sharing_policy"].choices
    assert isinstance(pool["parts"], click.IntRange)
    assert (pool["parts"].min, pool["parts"].max) == (1, 16)
    assert pool["patience_seconds"].name == "duration|none"
    with pytest.raises(click.BadParameter, match="no JSON object"):
        pool["rebalance_bounds"].convert("5", None, None)
    assert pool["rebalance_bounds"].convert('{"floor": 5}', None, None) == {"floor": 5}


def test_what_a_field_is_depends_on_its_operation() -> None:
    """A word for null is offered only where null is more than not giving the option."""
    claim = {field.name: field.kind.name for field in CLAIM_FIELDS}
    assert claim["pool"] == "text"
    quota = {field.name: field for field in BY_NAME["quota"].fields}
    assert (quota["pool"].kind.name, quota["hard"].kind.name) == ("text|all", "amount|unlimited")
    assert quota["hard"].required
    assert {field.name for field in BY_NAME["quota"].changes} == {"hard", "borrowing_limit", "lending_limit"}


METHODS = {
    "list": ("GET", ""), "show": ("GET", "{}/"), "create": ("POST", ""), "change": ("PATCH", "{}/"),
    "remove": ("DELETE", "{}/"),
}  # fmt: skip
OF_THE_TABLE = {
    f"{METHODS[verb][0]} {resource.pattern}{METHODS[verb][1]}": f"{resource.name} {verb}"
    for resource in TABLE
    for verb in resource.verbs
}
COMMANDS = OF_THE_TABLE | {
    "POST claims/": "claim create",
    "PATCH claims/{}/": "claim resize",
    "DELETE claims/{}/": "claim release",
    "POST claims/{}/suspend/": "claim suspend",
    "POST claims/{}/resume/": "claim resume",
    "POST claims/{}/move/": "claim move",
    "POST claims/{}/renew/": "claim renew",
    "GET claims/{}/env/": "claim env",
    "GET claims/{}/forecast/": "claim forecast",
    "GET claims/{}/remote/": "claim describe",
    "PATCH gpus/{}/": "gpu cordon",
    "POST gpus/{}/clear/": "gpu clear",
    "GET gpus/{}/processes/": "gpu processes",
    "POST invitations/": "user invite",
    "POST job-arrays/{}/stop/": "array stop",
    "POST jobs/": "job run",
    "GET jobs/{}/output/": "job logs",
    "POST jobs/{}/stop/": "job stop",
    "GET me/": "whoami",
    "POST nodes/": "node add",
    "POST nodes/{}/drain/": "node drain",
    "GET nodes/{}/drift/": "node drift",
    "GET me/notices/": "notice show",
    "POST me/notices/test/": "notice test",
    "POST nodes/{}/enrolment/": "node enrol",
    "POST nodes/{}/forget/": "node forget",
    "POST nodes/{}/lift-fence/": "node lift-fence",
    "POST nodes/{}/repair/": "node repair",
    "GET pools/{}/calendar/": "reservation calendar",
    "GET pools/{}/fair-share/": "pool fair-share",
    "GET pools/{}/what-if/": "pool what-if",
    "POST pools/{}/what-if/": "pool what-if",
    "GET pools/{}/consolidation/": "pool consolidate",
    "POST pools/{}/consolidation/accept/": "pool consolidate",
    "POST pools/{}/rebalance/": "pool rebalance",
    "POST proposals/{}/accept/": "proposal accept",
    "POST proposals/{}/dismiss/": "proposal dismiss",
    **{
        f"POST quota-requests/{{}}/{act}/": f"quota-request {act}"
        for act in ("accept", "approve", "counter", "deny", "forward", "withdraw")
    },
    "GET reports/efficiency/": "report efficiency",
    "GET reports/focus/": "report focus",
    "GET reports/opencost/": "report opencost",
    "GET reports/usage/": "report usage",
    "POST reservations/": "reservation create",
    "POST reservations/{}/release/": "reservation release",
    "POST tokens/": "token create",
    "DELETE tokens/{}/": "token revoke",
    "POST tokens/{}/rotate/": "token rotate",
    "POST users/{}/password-reset/": "user reset-password",
    "GET webhooks/{}/deliveries/": "webhook deliveries",
    "POST webhooks/{}/deliveries/{}/redeliver/": "webhook redeliver",
    "POST webhooks/{}/rotate/": "webhook rotate",
    "POST webhooks/{}/test/": "webhook test",
}
# Operations for which `gpucloud api` has to serve, by the beginning of their paths.
WITHOUT_A_COMMAND = {
    "POST claims/{}/remote/": "`run --remote` makes a key and uses the ticket",
    "POST claims/{}/release/": "`claim release` deletes, which is the same",
    "DELETE reservations/{}/": "`reservation release` posts, which is the same",
    "GET job-files/{}/": "`job run --dir` packs and uploads",
    "POST job-files/": "as above",
    "GET clusters/{}/": "what a cluster's connection, namespaces, pods and quotas are is for its page",
    "POST clusters/{}/": "namespaces are bound, and pods are imported, on the cluster's page",
    "PATCH clusters/{}/namespaces/": "as above",
    "DELETE clusters/{}/namespaces/": "as above",
    "POST clusters/join/": "agents of a cluster's nodes call it",
    "POST nodes/enrol/": "agents call it",
    "PATCH me/": "a person's time zone matters on pages only",
    "GET me/sessions/": "browsers have sessions",
    "DELETE me/sessions/": "browsers have sessions",
    "GET me/tokens/": "a personal token is made after signing in, on My account",
    "POST me/tokens/": "as above",
    "GET quotas/{}/ledger/": "a quota's page has it",
    "GET scheduler-configuration/": "printed by manage.py and on the cluster's page",
    "POST scheduler-configuration/": "as above",
    "GET utilization/": "`top` and `describe` show the latest; a page shows charts",
    "GET webhook-configuration/": "printed by manage.py and on the cluster's page",
}
# Fields that a command does not have as an option.
OTHERWISE = {
    "wait": "the command's `--wait` waits itself, over several requests",
    "GET claims/{}/env/ as": "`-o json` and the table",
    "POST pools/{}/consolidation/accept/ moves": "`--accept` takes those of a plan",
    "PATCH gpus/{}/ cordoned": "`gpu cordon`, `gpu uncordon`",
    "PATCH nodes/{}/ cordoned": "`node cordon`, `node uncordon`",
    "PATCH users/{}/ active": "`user activate`, `user deactivate`",
    "POST jobs/ kind": "`job notebook`",
    "POST jobs/ idle_minutes": "`job notebook --idle-minutes`",
    "POST jobs/ command": "the words after `--`",
    "POST jobs/ files": "`--dir`, which packs and uploads",
    "POST jobs/ git_url": "`--git URL[@REF]`",
    "POST jobs/ git_ref": "as above",
    "POST jobs/ after": "`--after`, by name or uid",
    "POST jobs/ after_any": "`--after-any`, likewise",
    "GET jobs/{}/output/ offset": "the command reads on by itself",
    "GET jobs/{}/output/ most": "as above",
    "GET reports/efficiency/ range": "`--range`, which is a word of Python",
    "GET reports/focus/ from": "`--month`",
    "GET reports/focus/ to": "`--month`",
    "GET reports/focus/ after": "the command reads all pages",
    "GET reports/focus/ limit": "as above",
    "GET reports/opencost/ accumulate": "without `--step`",
    "GET reports/opencost/ resolution": "without effect, for OpenCost's own clients",
    "GET reports/opencost/ includeIdle": "as above",
    "GET reports/opencost/ idleByNode": "as above",
    "GET reports/opencost/ includeProportionalAssetResourceCosts": "as above",
    "GET reports/opencost/ format": "as above",
    "GET reports/usage/ from": "`--from`, which is a word of Python",
    "GET reports/usage/ after": "the command reads all pages",
    "GET reports/usage/ limit": "as above",
    "GET webhooks/{}/deliveries/ kind": "few kinds are delivered to one address",
}


def found_command(name: str) -> click.Command:
    found: click.Command = build()
    for word in name.split():
        assert isinstance(found, click.Group)
        assert word in found.commands, f"there is no command {name!r}"
        found = found.commands[word]
    return found


@pytest.mark.parametrize("asked", fields.schema())
def test_the_command_can_do_what_the_api_can(asked: str) -> None:
    """Add a command for a new operation, or a reason; the fields of the table's commands come by themselves."""
    reason = max((start for start in WITHOUT_A_COMMAND if asked.startswith(start)), default=None)
    if asked not in COMMANDS:
        assert reason, f"no command for {asked}: COMMANDS or WITHOUT_A_COMMAND"
        return
    parameters = {str(one.name).rstrip("_") for one in found_command(COMMANDS[asked]).params}
    settable = parameters | {f"{name}_seconds" for name in parameters} | {f"{name}_at" for name in parameters}
    missing = set(fields.schema()[asked]) - settable - fields.OF_EVERY_LIST - OTHERWISE.keys()
    missing -= {name for name in missing if f"{asked} {name}" in OTHERWISE}
    assert not missing, f"`gpucloud {COMMANDS[asked]}` cannot set {', '.join(sorted(missing))}"


def test_no_reason_is_left_over() -> None:
    every = fields.schema()
    assert all(asked in every for asked in COMMANDS)
    for start in WITHOUT_A_COMMAND:
        assert any(asked.startswith(start) and asked not in COMMANDS for asked in every), start
    for said in OTHERWISE:
        asked, _, name = said.rpartition(" ")
        assert any(name in every[one] for one in ([asked] if asked else every)), said


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed(shell: str, tmp_path: Path) -> None:
    printed = Shell(tmp_path).run("completion", shell)
    assert printed.code == 0
    assert "_GPUCLOUD_COMPLETE" in printed.out


@pytest.mark.slow
def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    completer = Shell(tmp_path)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "gpucloud"
    program.write_text(f'#!/bin/sh\nexec {" ".join(completer.line())} "$@"\n')
    program.chmod(0o755)
    script = """
        source <(gpucloud completion bash)
        try() {
            COMPREPLY=(); COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
            _gpucloud_completion gpucloud
            echo "${COMPREPLY[@]}"
        }
        try gpucloud cla; try gpucloud claim re; try gpucloud run --mem
    """
    environment = completer.environment | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["claim", "release renew resize resume", "--memory --memory-limit"], done.stderr
