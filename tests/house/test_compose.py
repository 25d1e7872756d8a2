"""docker-compose.yml and the Dockerfile: facts that their users rely on, read from the files."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
# Run once and end.
ONCE = {"migrate", "seed"}
DATA = {"postgres", "valkey"}
AGENTS = {name for name in SERVICES if name.startswith("agent")}
# Started by `docker compose up` without a profile.
PRODUCTION = {"postgres", "valkey", "migrate", "web", "scheduler", "worker", "beat"}
DEFAULT = re.compile(r"\$\{([A-Z_]+):?-([^{}]*)\}")


def seconds(duration: str) -> int:
    """Return a duration of Compose like 3m or 180s in seconds."""
    found = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", duration)
    assert found is not None, duration
    return 60 * int(found[1] or 0) + int(found[2] or 0)


def volumes_of(name: str) -> set[str]:
    """Return the named volumes of a service."""
    mounts = [one.split(":")[0] for one in SERVICES[name].get("volumes", ())]
    return {one for one in mounts if not one.startswith((".", "/", "$"))}


def example_values() -> dict[str, str]:
    """Return what a copy of .env.example sets; a line that begins with # sets nothing."""
    return dict(re.findall(r"^([A-Z_]+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))


@pytest.mark.parametrize("name", sorted({*DATA, "web"}))
def test_a_service_that_others_wait_for_has_fifteen_minutes_to_start(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert seconds(check["start_period"]) >= 900
    # Polled often during the start: a quick machine does not wait for the ordinary interval.
    assert seconds(check["start_interval"]) <= 2


def test_a_service_without_a_port_is_asked_whether_its_loop_moves() -> None:
    asked = {
        name
        for name, service in SERVICES.items()
        if service.get("healthcheck", {}).get("test") == ["CMD", "sh", "deploy/docker/alive.sh"]
    }
    assert asked == {"scheduler", "worker", "beat", "clusters", "sharepods"}
    for name in asked:
        assert seconds(SERVICES[name]["healthcheck"]["start_period"]) >= 900, name
        assert SERVICES[name]["environment"]["HEARTBEAT_PATH"] == "${HEARTBEAT_PATH:-/tmp/heartbeat}"
        assert SERVICES[name]["tmpfs"] == ["/tmp"], name  # noqa: S108 - a container's own


def test_the_image_has_no_health_check_for_compose_to_wait_for_in_vain() -> None:
    # One image for nine commands, of which one serves: `up --wait` fails at a service that disables the check.
    assert "HEALTHCHECK" not in (ROOT / "Dockerfile").read_text()
    assert not any("disable" in service.get("healthcheck", ()) for service in SERVICES.values())


def test_the_image_has_the_bytecode_of_its_own_code() -> None:
    assert "python -m compileall" in (ROOT / "Dockerfile").read_text()


def test_the_image_is_built_without_asking_a_hub_for_a_parser() -> None:
    assert not (ROOT / "Dockerfile").read_text().startswith("# syntax=")


def test_one_service_builds_the_image_and_the_others_use_it() -> None:
    building = [name for name, service in SERVICES.items() if "build" in service]
    assert building == ["migrate"]
    ours = {service["image"] for name, service in SERVICES.items() if name not in DATA}
    assert ours == {"${GPUCLOUD_IMAGE:-gpucloud}"}


def test_what_is_for_the_demo_starts_with_its_profile_only() -> None:
    assert {name for name, service in SERVICES.items() if "profiles" not in service} == PRODUCTION
    assert {name for name, service in SERVICES.items() if service.get("profiles") == ["demo"]} == {"seed", *AGENTS}


def test_an_agent_sees_neither_the_operators_files_nor_another_agents() -> None:
    assert len(AGENTS) == 2
    theirs = {name: volumes_of(name) for name in AGENTS}
    assert all(len(volumes) == 1 for volumes in theirs.values())
    together = {volume for volumes in theirs.values() for volume in volumes}
    assert len(together) == len(AGENTS)
    # The seed writes each agent's one-time token into that agent's own volume, the operator's files into another one.
    operators = volumes_of("seed") - together
    assert len(operators) == 1
    assert not any(operators & volumes for volumes in theirs.values())


def test_an_agent_has_no_secret_and_reaches_neither_database_nor_broker() -> None:
    for name in AGENTS:
        assert "secrets" not in SERVICES[name]
        assert not set(SERVICES[name]["networks"]) & set(SERVICES["postgres"]["networks"])
        assert not set(SERVICES[name]["networks"]) & set(SERVICES["valkey"]["networks"])


def test_databases_are_on_a_network_without_a_way_out() -> None:
    for name in DATA:
        assert all(COMPOSE["networks"][network].get("internal") for network in SERVICES[name]["networks"])
        assert "ports" not in SERVICES[name]


def test_secrets_are_files_and_not_environment() -> None:
    for service in SERVICES.values():
        assert not {"SECRET_KEY", "POSTGRES_PASSWORD"} & set(service.get("environment", ()))
    assert set(COMPOSE["secrets"]) == {"secret_key", "postgres_password"}
    assert "POSTGRES_PASSWORD_FILE" in SERVICES["postgres"]["environment"]
    assert {"SECRET_KEY_FILE", "DATABASE_PASSWORD_FILE"} <= set(SERVICES["web"]["environment"])


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_is_bounded_and_cannot_change_its_image(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {"max-size", "max-file"} <= set(service["logging"]["options"])


@pytest.mark.parametrize("name", sorted(set(SERVICES) - ONCE))
def test_every_service_says_how_long_its_end_may_take(name: str) -> None:
    assert seconds(SERVICES[name]["stop_grace_period"]) > 10


def test_the_server_has_longer_to_end_than_it_gives_its_requests() -> None:
    given = re.search(r'"--timeout-graceful-shutdown", "(\d+)"', (ROOT / "Dockerfile").read_text())
    # If the command is not in the Dockerfile, the code that starts the server says 10 s.
    assert seconds(SERVICES["web"]["stop_grace_period"]) > int(given[1] if given else 10)


def test_a_copied_example_changes_nothing_that_compose_says() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    defaults = DEFAULT.findall(text)
    assert len(defaults) > 30
    different = {
        name: (value, default)
        for name, default in defaults
        if (value := example_values().get(name)) and value != default
    }
    assert not different


def test_every_bind_mount_and_secret_is_a_path_that_git_and_the_image_leave_out() -> None:
    assert "/secrets/" in (ROOT / ".gitignore").read_text().splitlines()
    allowed = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert "!secrets/" not in allowed


def test_the_least_versions_are_the_same_everywhere() -> None:
    """The versions of PostgreSQL and Redis, in every document that names them."""
    found: dict[str, set[str]] = {"PostgreSQL": set(), "Redis": set(), "Valkey": set()}
    for path in [ROOT / "README.md", ROOT / ".env.example", *sorted((ROOT / "docs").glob("*.md"))]:
        for name, version in re.findall(r"(PostgreSQL|Redis|Valkey) (\d+)\s+or newer", path.read_text()):
            found[name].add(version)
    assert found == {"PostgreSQL": {"15"}, "Redis": {"7"}, "Valkey": {"7"}}


def test_documents_say_how_to_sign_in_after_up() -> None:
    for name in ("README.md", "docs/compose.md"):
        assert "docker compose exec web python manage.py create_operator" in (ROOT / name).read_text()


def test_documents_restore_by_the_commands_that_are_tried() -> None:
    """tests/containers runs these; a document with other commands is untested."""
    said = (ROOT / "docs" / "operations.md").read_text()
    tried = (ROOT / "tests" / "containers" / "test_compose.py").read_text()
    for command in ("pg_dump", "dropdb", "createdb", "pg_restore", "check_ledger"):
        assert command in said
        assert command in tried
    assert "--exit-on-error" in said
    assert "--exit-on-error" in tried


def test_podmans_override_takes_away_what_its_protocol_lacks() -> None:
    waited_for = {name for name, service in SERVICES.items() if "start_interval" in service.get("healthcheck", ())}
    text = (ROOT / "deploy" / "docker" / "podman.yml").read_text()
    overridden = set(
        re.findall(
            r"^  (\w+):\n    healthcheck:\n(?:      .*\n)*?      start_interval: !reset null", text, re.MULTILINE
        )
    )
    assert overridden == waited_for
