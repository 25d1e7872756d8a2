"""Facts that exist twice agree: settings and .env.example, Makefile and help, pins and their reasons."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from agent.__main__ import RUN_MORE
from deploy.demo.programs import CONTROL_PLANE

ROOT = Path(__file__).resolve().parent.parent.parent
REQUIREMENTS = ("requirements.txt", "requirements-dev.txt", "deploy/requirements-dist.txt")


def example() -> list[tuple[str, str]]:
    """Return the variables of .env.example, each with the comment above it."""
    blocks = (ROOT / ".env.example").read_text().split("\n\n")
    found = []
    for block in blocks:
        comment = " ".join(line.removeprefix("# ") for line in block.splitlines() if line.startswith("# "))
        found += [(name, comment) for name in re.findall(r"^#?([A-Z_]+)=", block, re.MULTILINE)]
    return found


def settings_variables() -> set[str]:
    source = (ROOT / "gpucloud" / "settings.py").read_text()
    return set(re.findall(r"environment\.\w+\(\s*\"([A-Z_]+)\"", source))


def files_of_secrets() -> set[str]:
    """Return the variables that name a file with a secret."""
    return {"DATABASE_PASSWORD_FILE", "EMAIL_HOST_PASSWORD_FILE", "OIDC_CLIENT_SECRET_FILE", "SECRET_KEY_FILE"}


def compose_variables() -> set[str]:
    return set(re.findall(r"\$\{([A-Z_]+)", (ROOT / "docker-compose.yml").read_text()))


def test_the_example_names_what_the_settings_and_compose_read_and_nothing_else() -> None:
    assert {name for name, _ in example()} == settings_variables() | compose_variables() | files_of_secrets()


def test_the_demo_keeps_what_the_settings_read_from_agents_and_programs() -> None:
    assert settings_variables() | files_of_secrets() <= CONTROL_PLANE


def test_compose_passes_on_everything_that_the_settings_read() -> None:
    web = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["web"]
    passed = {name.removesuffix("_FILE") for name in web["environment"]}
    assert settings_variables() <= passed


@pytest.mark.parametrize(("name", "comment"), example())
def test_each_variable_has_a_sentence(name: str, comment: str) -> None:
    assert len(comment) > 20, name


@pytest.mark.parametrize("name", ["SESSION_IDLE_MINUTES", "SESSION_HOURS", "THROTTLE_BURST"])
def test_a_setting_that_would_let_nobody_in_stops_the_start(name: str) -> None:
    started = subprocess.run(
        [sys.executable, "-c", "import gpucloud.settings"],
        cwd=ROOT,
        env=os.environ | {name: "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{name}='0' is not a whole number, 1 or more." in started.stderr


@pytest.mark.parametrize(("https_only", "seconds"), [("1", "31536000"), ("0", "0")])
def test_browsers_are_told_to_come_by_https_only_where_it_is(https_only: str, seconds: str) -> None:
    asked = subprocess.run(
        [sys.executable, "-c", "from gpucloud import settings; print(settings.SECURE_HSTS_SECONDS)"],
        cwd=ROOT,
        env=os.environ | {"HTTPS_ONLY": https_only},
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout.strip() == seconds


@pytest.mark.parametrize(("https_only", "prefix"), [("1", "__Host-"), ("0", "")])
def test_no_other_host_of_the_domain_can_set_the_consoles_cookies(https_only: str, prefix: str) -> None:
    names = "settings.SESSION_COOKIE_NAME, settings.CSRF_COOKIE_NAME, settings.SESSION_COOKIE_SECURE"
    asked = subprocess.run(
        [sys.executable, "-c", f"from gpucloud import settings; print({names})"],
        cwd=ROOT,
        env=os.environ | {"HTTPS_ONLY": https_only},
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout.split() == [f"{prefix}sessionid", f"{prefix}csrftoken", str(https_only == "1")]


@pytest.mark.parametrize("file", REQUIREMENTS)
def test_each_requirement_is_pinned_and_has_a_reason(file: str) -> None:
    for line in (ROOT / file).read_text().splitlines():
        if line and not line.startswith("#"):
            marker = r"(; platform_machine == \"x86_64\")?"
            assert re.fullmatch(rf"[\w.-]+(\[[\w,]+\])?==[\w.]+{marker}\s+# \S.{{4,}}", line), line


def test_no_requirement_is_named_twice() -> None:
    names = [
        re.split(r"[\[=]", line)[0].lower()
        for file in REQUIREMENTS
        for line in (ROOT / file).read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert len(names) == len(set(names))


def test_the_package_that_warns_at_every_start_is_not_listed() -> None:
    # `import pynvml` comes from nvidia-ml-py; the package of that name is inactive.
    assert not any("\npynvml" in (ROOT / file).read_text() for file in REQUIREMENTS)


def test_make_lists_every_target_with_a_text() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE).group(1).split())  # type: ignore[union-attr]
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    listed = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert targets == phony
    assert set(re.findall(r"^  make ([a-z-]+) +\S", listed.stdout, re.MULTILINE)) == targets


def test_compose_runs_every_process_of_the_platform() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert {"postgres", "valkey", "migrate", "web", "scheduler", "worker", "beat", "agent"} <= set(services)


def test_compose_lets_the_health_check_in_whatever_the_hosts_are() -> None:
    web = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["web"]
    always = web["environment"]["ALLOWED_HOSTS"].rpartition("}")[2].split(",")
    asked = re.search(r'HTTPConnection\("([\d.]+)"', (ROOT / "deploy" / "docker" / "ready.py").read_text())
    assert asked is not None
    assert asked[1] in always


def test_compose_gives_an_agent_no_secret_of_the_control_plane() -> None:
    agent = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["agent"]
    assert not {"SECRET_KEY", "DATABASE_URL", "REDIS_URL"} & set(agent["environment"])


def test_the_image_does_not_run_as_root() -> None:
    users = re.findall(r"^USER (.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert users == ["10001:10001"]


def test_the_licence_is_there_in_full() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_changelog_has_a_place_for_what_comes() -> None:
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_agents_help_names_every_setting_that_it_reads() -> None:
    read = set(re.findall(r"\"(GPUCLOUD_[A-Z_]+)\"", (ROOT / "agent" / "settings.py").read_text()))
    assert len(read) > 10
    assert read - set(re.findall(r"^  (GPUCLOUD_[A-Z_]+)\b", RUN_MORE, re.MULTILINE)) == set()
