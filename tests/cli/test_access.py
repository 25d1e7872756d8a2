"""The server's address and the token; only `login` needs a server."""

import functools
import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpucloud_cli import access, amounts
from gpucloud_cli.commands.claims import RESIZED
from gpucloud_cli.failures import Exit, Failure, Problem, Usage, exit_code
from gpucloud_cli.fields import CLAIM_FIELDS
from gpucloud_cli.resources import TABLE, Resource
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


def body_of(path: str, method: str) -> dict[str, Any]:
    found = operation(path, method)["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    return schema(found.rpartition("/")[2])


@pytest.mark.parametrize("resource", TABLE, ids=lambda resource: resource.name)
def test_every_name_in_the_table_is_the_apis(resource: Resource) -> None:
    """Columns, fields and filters: an unknown name would show nothing, or be refused."""
    path = resource.path.replace("{parent}", "{name}" if resource.parent == "pool" else "{slug}")
    listed = operation(path, "get")
    assert {field.name for field in resource.filters} <= {one["name"] for one in listed["parameters"]}
    page = listed["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
    item = schema(page.rpartition("/")[2])["results"]["items"]["$ref"]
    shown = {column.partition(".")[0] for column in resource.columns} | {resource.key}
    assert shown <= set(schema(item.rpartition("/")[2]))
    if resource.previews:
        assert "dry_run" in {one["name"] for one in operation(path, "post")["parameters"]}
    if "create" in resource.verbs:
        assert {field.name for field in resource.fields} <= set(body_of(path, "post"))


def test_every_field_of_a_claim_is_the_apis() -> None:
    assert {field.name for field in CLAIM_FIELDS} <= set(body_of("claims/", "post"))
    assert {field.name for field in RESIZED} <= set(body_of("claims/{uid}/", "patch"))


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
    assert done.stdout.splitlines() == ["claim", "release renew resize", "--memory"], done.stderr
