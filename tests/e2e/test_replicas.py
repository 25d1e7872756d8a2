"""Nothing is sticky: each request of a client, each page and each agent may be at another web server."""

import http.cookiejar
import json
import re
import urllib.request
import uuid

import pytest
from websockets.sync.client import connect
from websockets.typing import Origin

from tests.platform import Json, until
from tests.processes import http_status
from tests.replicas.platform import Replicas

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]

# A hint from one server reaches the others in milliseconds; without it, a page waits for its next refresh.
TOLD_SECONDS = 10.0
CSRF = re.compile(r'name="csrfmiddlewaretoken" value="([^"]+)"')


class Browser:
    """A browser whose requests go to any web server; the session is in the database."""

    def __init__(self, replicas: Replicas) -> None:
        self.jar = http.cookiejar.CookieJar()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.jar))
        self._replicas = replicas

    def open(self, web: int, path: str, body: str | None = None) -> str:
        url = f"http://127.0.0.1:{self._replicas.web_ports[web]}{path}"
        headers = {"Referer": url, "Origin": url.removesuffix(path)}
        request = urllib.request.Request(url, body.encode() if body else None, headers)
        with self._opener.open(request, timeout=60) as answer:
            text: str = answer.read().decode()
            return text

    def sign_in(self, web: int, password: str) -> None:
        found = CSRF.search(self.open(web, "/sign-in/"))
        assert found is not None
        self.open(web, "/sign-in/", f"username=operator&password={password}&csrfmiddlewaretoken={found[1]}")

    @property
    def cookie(self) -> str:
        return "; ".join(f"{one.name}={one.value}" for one in self.jar)


def ask(replicas: Replicas, web: int, method: str, path: str, body: Json | None = None, **headers: str) -> Json:
    """Send a request to one web server; return its JSON."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{replicas.web_ports[web]}/api/v1/{path}",
        json.dumps(body).encode() if body else None,
        {"Authorization": f"Bearer {replicas.token}", "Content-Type": "application/json", **headers},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        found: Json = json.loads(answer.read() or b"{}")
        return found


def test_a_session_of_one_server_is_one_of_the_others(replicas: Replicas) -> None:
    browser = Browser(replicas)
    password = (replicas.state / "operator.password").read_text().strip()
    browser.sign_in(0, password)
    assert "operator" in browser.open(1, "/claims/")


def test_a_repeated_request_at_another_server_has_the_first_ones_answer(replicas: Replicas) -> None:
    tenant = replicas.new_tenant(f"again-{uuid.uuid4().hex[:8]}")
    body: Json = {"tenant": tenant, "name": "once", "core_request": 5, "memory_mib": 512}
    key = {"Idempotency-Key": uuid.uuid4().hex}
    first, second = (ask(replicas, web, "POST", "claims/", body, **key) for web in (0, 1))
    assert first["uid"] == second["uid"]
    ask(replicas, 1, "DELETE", f"claims/{first['uid']}/")


def test_each_server_waits_for_agents_that_the_other_one_has(replicas: Replicas) -> None:
    tenant = replicas.new_tenant(f"waits-{uuid.uuid4().hex[:8]}")
    body: Json = {"tenant": tenant, "name": "waits", "core_request": 5, "memory_mib": 512}
    for web in (0, 1):
        claim = ask(replicas, web, "POST", "claims/?wait=30", body)
        assert claim["state"] == "active"
        resized = ask(replicas, 1 - web, "PATCH", f"claims/{claim['uid']}/?wait=30", {"core_limit": 50 + web})
        assert resized["observed_generation"] == resized["generation"]
        ask(replicas, web, "DELETE", f"claims/{claim['uid']}/")


def test_a_page_at_one_server_hears_of_a_change_at_the_other(replicas: Replicas) -> None:
    browser = Browser(replicas)
    browser.sign_in(1, (replicas.state / "operator.password").read_text().strip())
    tenant = replicas.new_tenant(f"page-{uuid.uuid4().hex[:8]}")
    body: Json = {"tenant": tenant, "name": "seen", "core_request": 5, "memory_mib": 512}
    port = replicas.web_ports[1]
    headers = {"Cookie": browser.cookie}
    address = f"ws://127.0.0.1:{port}/ws/live/?claims=all"
    with connect(
        address, additional_headers=headers, origin=Origin(f"http://127.0.0.1:{port}"), open_timeout=30
    ) as page:
        uid = ask(replicas, 0, "POST", "claims/", body)["uid"]
        until(lambda: json.loads(page.recv(TOLD_SECONDS)).get("uid") == uid, what="the page to be told")
    ask(replicas, 0, "DELETE", f"claims/{uid}/")


@pytest.mark.parametrize("part", ["server-1", "server-2"])
def test_a_change_is_in_force_soon_after_the_server_of_its_agent_was_killed(replicas: Replicas, part: str) -> None:
    tenant = replicas.new_tenant(f"killed-{uuid.uuid4().hex[:8]}")
    body: Json = {"tenant": tenant, "name": "killed", "core_request": 5, "memory_mib": 512}
    claim = replicas.granted("POST", "claims/?wait=30", body)
    replicas.kill(part)
    other = 1 if part == "server-1" else 0
    resized = ask(replicas, other, "PATCH", f"claims/{claim['uid']}/?wait=30", {"core_limit": 60})
    assert resized["observed_generation"] == resized["generation"]
    killed = replicas.web_ports[1 - other]
    until(lambda: http_status(killed, "/readyz") == 200, what=f"{part} to be back")
    ask(replicas, other, "DELETE", f"claims/{claim['uid']}/")
