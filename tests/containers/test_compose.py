"""docker-compose.yml on a real engine: an operator's first weeks with it."""

import re
import subprocess
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from tests.containers.engine import BACK_SECONDS, Installation, docker
from tests.platform import until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(2400)]
PASSWORD = "seven-grey-herons-42"
SERVICES = ("valkey", "postgres", "web", "scheduler", "worker", "beat", "agent")


def sign_in(installation: Installation, *, name: str, password: str) -> str:
    """Sign in by the form, as a browser does, and return the page that comes after."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    with browser.open(f"{installation.url}/sign-in/", timeout=60) as page:
        form = page.read().decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', form)
    assert token is not None
    fields = {"csrfmiddlewaretoken": token[1], "username": name, "password": password}
    with browser.open(f"{installation.url}/sign-in/", urllib.parse.urlencode(fields).encode(), timeout=60) as page:
        return str(page.read().decode())


def test_an_operator_is_made_and_signs_in(installation: Installation) -> None:
    made = ("exec", "-T", "web", "python", "manage.py", "create_operator", "ada")
    assert installation.compose(*made, given=f"{PASSWORD}\n").startswith("gp")
    page = sign_in(installation, name="ada", password=PASSWORD)
    assert "/sign-out/" in page
    # The control: a wrong password shows the form again.
    assert "/sign-out/" not in sign_in(installation, name="ada", password="not-it-at-all-1")


def test_nothing_of_ours_runs_as_root_or_can_write_to_its_image(installation: Installation) -> None:
    for service in ("web", "scheduler", "worker", "beat", "agent"):
        script = "id -u; touch /srv/gpucloud/new 2>/dev/null && echo wrote; ls /srv/gpucloud/apps/__pycache__ | head -1"
        said = installation.compose("exec", "-T", service, "sh", "-c", script).split()
        assert said[0] == "10001"
        assert "wrote" not in said
        assert said[-1].endswith(".pyc")


def test_an_agent_holds_its_own_key_and_no_secret_besides(installation: Installation) -> None:
    script = "find /var/lib/gpucloud /run/secrets -type f 2>/dev/null; env"
    said = installation.compose("exec", "-T", "agent", "sh", "-c", script)
    assert "/var/lib/gpucloud/nodes/sim-1/agent.json" in said
    assert "operator" not in said
    assert "sim-2" not in said
    assert not {"SECRET_KEY", "PASSWORD", "DATABASE_URL", "REDIS_URL"} & set(re.findall(r"^(\w+)=", said, re.MULTILINE))


def test_an_agent_reaches_the_server_and_not_the_database(installation: Installation) -> None:
    script = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
    installation.compose("exec", "-T", "agent", "python", "-c", script, "web", "8000")
    for name, port in (("postgres", "5432"), ("valkey", "6379")):
        with pytest.raises(AssertionError, match=r"gaierror|TimeoutError|OSError"):
            installation.compose("exec", "-T", "agent", "python", "-c", script, name, port)


def test_a_claim_gets_in_force_moves_and_ends(installation: Installation, tenant: str) -> None:
    claim = installation.claim(tenant)
    installation.granted("PATCH", f"claims/{claim['uid']}/", {"core_limit": 70})
    assert installation.in_force(claim["uid"])["core_limit"] == 70
    installation.granted("DELETE", f"claims/{claim['uid']}/")
    gone = lambda: installation.granted("GET", f"claims/{claim['uid']}/")["state"] == "released"  # noqa: E731
    until(gone, seconds=BACK_SECONDS, what="the claim to be released")


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_is_restarted_and_claims_go_on(installation: Installation, tenant: str, service: str) -> None:
    before = installation.claim(tenant)
    installation.compose("restart", service)
    until(installation.serves, seconds=BACK_SECONDS, what="the server to answer")
    assert installation.in_force(before["uid"])["state"] == "active"
    after = installation.claim(tenant)
    for claim in (before, after):
        installation.granted("DELETE", f"claims/{claim['uid']}/")


def test_a_stop_is_in_order(installation: Installation) -> None:
    """No process of ours has to be killed: each ends in time, by itself."""
    installation.compose("stop", "web", "scheduler", "worker", "beat", "agent", "agent-shared")
    for service in ("web", "scheduler", "worker", "beat", "agent"):
        container = installation.compose("ps", "-aq", service).strip()
        code = docker("inspect", "--format", "{{.State.ExitCode}}", container).stdout.strip()
        assert code != "137", f"{service} was killed"
    installation.up("--no-build")


def test_what_was_dumped_comes_back(installation: Installation, tenant: str, work: Path) -> None:
    """The commands of docs/operations.md."""
    kept = installation.claim(tenant, name="kept")
    dump = work / "gpucloud.dump"
    container = installation.compose("ps", "-q", "postgres").strip()
    with dump.open("wb") as file:
        command = ["docker", "exec", container, "pg_dump", "--username", "gpucloud", "--format", "custom", "gpucloud"]
        subprocess.run(command, stdout=file, check=True, timeout=600)
    installation.granted("DELETE", f"claims/{kept['uid']}/")
    late = installation.claim(tenant, name="late")
    installation.compose("stop", "web", "scheduler", "worker", "beat")
    for command in (["dropdb", "--force"], ["createdb"]):
        installation.compose("exec", "-T", "postgres", command[0], "--username", "gpucloud", *command[1:], "gpucloud")
    restore = ["pg_restore", "--username", "gpucloud", "--dbname", "gpucloud", "--exit-on-error"]
    with dump.open("rb") as file:
        installation.compose("exec", "-T", "postgres", *restore, given=file)
    installation.up("--no-build")
    # Claims made before the dump are in force again, later ones are gone; tokens work.
    assert installation.in_force(kept["uid"])["name"] == "kept"
    assert installation.call("GET", f"claims/{late['uid']}/").status == 404
    installation.compose("exec", "-T", "web", "python", "manage.py", "check_ledger")
    installation.granted("DELETE", f"claims/{kept['uid']}/")
