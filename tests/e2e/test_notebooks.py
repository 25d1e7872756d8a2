"""Notebooks the whole way: a browser, the server's proxy, a tunnel, and real Jupyter with its kernels on the node."""

import json
import os
import re
import socket
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from tests.platform import Json, Platform, until

pytestmark = [
    pytest.mark.serial,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() == 0, reason="a demo's agent that runs as root starts no jobs"),
]

JUPYTER = str(Path(sys.executable).parent / "jupyter")


class Browser:
    """A person's browser, as far as cookies, hosts and origins matter."""

    def __init__(self, platform: Platform, username: str) -> None:
        password = (platform.state / f"{username}.password").read_text().strip()
        self.platform = platform
        self.client = httpx.Client(base_url=platform.url, timeout=60)
        form = self.client.get("/sign-in/").text
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', form)
        assert token is not None
        values = {"username": username, "password": password, "csrfmiddlewaretoken": token[1]}
        answer = self.client.post("/sign-in/", data=values, headers={"Referer": platform.url})
        assert answer.status_code == 302, answer.text
        self.cookie = ""

    def follow(self, uid: str) -> httpx.Response:
        """Follow the console's link into the notebook; return the answer of the notebook's host."""
        link = self.client.get(f"/jobs/{uid}/notebook/")
        assert link.status_code == 302, link.text
        answer = self.ask(link.headers["location"])
        if answer.status_code == 303:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return answer

    def ask(self, url: str, method: str = "GET", *, cookie: str | None = None, **more: Any) -> httpx.Response:
        """Send a request to a notebook's host, whose name needs no resolver here."""
        parts = urlsplit(url)
        headers = {"Host": parts.netloc, **more.pop("headers", {})}
        headers |= {"Cookie": found} if (found := self.cookie if cookie is None else cookie) else {}
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        return httpx.request(method, self.platform.url + path, headers=headers, timeout=60, **more)

    def socket(self, origin: str, path: str, *, said: str | None = None) -> ClientConnection:
        """Open a websocket at a notebook's host, from a page of this origin."""
        there = socket.create_connection(("127.0.0.1", self.platform.port))
        try:
            opened: Any = connect(
                f"ws://{urlsplit(origin).netloc}{path}",
                sock=there,
                origin=Origin(said or origin),
                additional_headers={"Cookie": self.cookie},
                compression=None,
            )
        except InvalidStatus:
            there.close()
            raise
        assert isinstance(opened, ClientConnection)
        return opened


@pytest.fixture
def tenant(platform: Platform) -> str:
    platform.granted("PATCH", "pools/default/", {"jobs": True})
    until(lambda: platform.granted("GET", "nodes/sim-1/")["jobs"], seconds=30, what="the node to offer jobs")
    return platform.new_tenant(f"notebooks-{os.urandom(4).hex()}", core=1000)


def start(platform: Platform, tenant: str, **more: Any) -> Json:
    """Start a notebook, and return it once it runs."""
    asked = {
        "tenant": tenant, "name": "lab", "kind": "notebook", "command": [JUPYTER], "core_request": 20,
        "memory_mib": 512, **more,
    }  # fmt: skip
    job = platform.granted("POST", "jobs/", asked)

    def running() -> Json | None:
        found: Json = platform.granted("GET", f"jobs/{job['uid']}/")
        assert found["state"] in ("queued", "running"), platform.granted("GET", f"jobs/{job['uid']}/output/")["text"]
        return found if found["state"] == "running" else None

    found: Json = until(running, seconds=60, what="the notebook to run")
    return found


@pytest.fixture
def member(platform: Platform, tenant: str) -> Iterator[Browser]:
    """Yield the browser of an ordinary person, who is a member of the tenant."""
    platform.granted("POST", f"tenants/{tenant}/members/", {"username": "member", "role": "member"})
    browser = Browser(platform, "member")
    yield browser
    browser.client.close()


def origin_of(platform: Platform, uid: str) -> str:
    return f"http://{uid}.notebooks.localhost:{platform.port}"


def run_cell(kernel: ClientConnection, code: str) -> str:
    """Have the kernel execute this; return the id of the request."""
    request = uuid.uuid4().hex
    header = {"msg_id": request, "msg_type": "execute_request", "session": "s", "username": "u", "version": "5.3"}
    content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    kernel.send(json.dumps(message))
    return request


def await_output(kernel: ClientConnection, request: str, wanted: str, *, seconds: float = 60) -> str:
    """Return what the cell has printed, once that contains this."""
    text, end = "", time.monotonic() + seconds
    while wanted not in text:
        message = json.loads(kernel.recv(timeout=max(0.1, end - time.monotonic())))
        if message["parent_header"].get("msg_id") == request and message["msg_type"] == "stream":
            text += message["content"]["text"]
        assert message["msg_type"] != "error", message
    return text


def test_a_notebook_from_its_start_to_its_end_by_the_idle_rule(
    platform: Platform, tenant: str, member: Browser
) -> None:
    job = start(platform, tenant, idle_minutes=1)
    origin = origin_of(platform, job["uid"])
    assert member.follow(job["uid"]).status_code == 303
    status = until(lambda: ready(member, origin), seconds=60, what="Jupyter to answer")
    assert status["kernels"] == 0
    kernel_id = member.ask(f"{origin}/api/kernels", "POST", json={}, headers={"Origin": origin}).json()["id"]
    channels = f"/api/kernels/{kernel_id}/channels"
    with member.socket(origin, channels) as kernel:
        request = run_cell(kernel, "import os; print('claim', os.environ['GPUCLOUD_CLAIM'])")
        assert job["claim"] in await_output(kernel, request, "claim")
        # The cell goes on while the share grows under it.
        request = run_cell(kernel, "import time\nfor n in range(1000): print('turn', n, flush=True); time.sleep(0.1)")
        await_output(kernel, request, "turn 3")
        platform.granted("PATCH", f"claims/{job['claim']}/", {"core_request": 40, "core_limit": 60})
        is_in_force = until(lambda: in_force(platform, job["claim"], 60), seconds=30, what="the new share in force")
        assert is_in_force
        assert "turn" in await_output(kernel, request, "turn")
        # A large answer comes whole, in pieces.
        member.ask(f"{origin}/api/kernels/{kernel_id}/interrupt", "POST", headers={"Origin": origin})
    left = time.monotonic()
    ended = until(lambda: has_ended(platform, job["uid"]), seconds=150, what="the idle rule")
    assert time.monotonic() - left > 45
    assert ended["state"] == "stopped"
    assert "not used for 1 minutes" in ended["reason"]
    until(lambda: platform.granted("GET", f"claims/{job['claim']}/")["state"] == "released", what="the claim's end")
    assert member.ask(f"{origin}/api/status").status_code == 409


def ready(browser: Browser, origin: str) -> Json | None:
    """Return Jupyter's status once it answers."""
    answer = browser.ask(f"{origin}/api/status")
    assert answer.status_code in (200, 503), answer.text
    found: Json = answer.json() if answer.status_code == 200 else {}
    return found or None


def in_force(platform: Platform, claim: str, limit: int) -> bool:
    assignments = platform.granted("GET", f"claims/{claim}/")["assignments"]
    return all(one["core_limit"] == limit and one["generation"] == one["observed_generation"] for one in assignments)


def has_ended(platform: Platform, uid: str) -> Json | None:
    job: Json = platform.granted("GET", f"jobs/{uid}/")
    return job if job["ended_at"] else None


def test_nobody_else_enters_and_nothing_of_the_console_reaches_jupyter(
    platform: Platform, tenant: str, member: Browser
) -> None:
    job = start(platform, tenant)
    origin = origin_of(platform, job["uid"])
    member.follow(job["uid"])
    until(lambda: ready(member, origin), seconds=60, what="Jupyter to answer")
    # Another page's websocket, another page's request, no cookie, a cookie of the console, another notebook's host.
    with pytest.raises(InvalidStatus):
        member.socket(origin, "/api/events/subscribe", said=platform.url)
    foreign = member.ask(f"{origin}/api/kernels", "POST", json={}, headers={"Origin": platform.url})
    assert foreign.status_code == 403
    assert member.ask(f"{origin}/api/status", cookie="").status_code == 403
    session = f"sessionid={member.client.cookies['sessionid']}"
    assert member.ask(f"{origin}/api/status", cookie=session).status_code == 403
    other = origin_of(platform, str(uuid.uuid4()))
    assert member.ask(f"{other}/api/status").status_code == 403
    assert member.ask(f"http://notebooks.localhost:{platform.port}/sign-in/").status_code == 404
    # A used ticket.
    link = member.client.get(f"/jobs/{job['uid']}/notebook/").headers["location"]
    assert [member.ask(link, cookie="").status_code for _ in range(2)] == [303, 403]
    # Who may not see the tenant, any more.
    platform.granted("DELETE", f"tenants/{tenant}/members/member/")
    until(lambda: member.ask(f"{origin}/api/status").status_code == 404, seconds=30, what="the refusal")
    assert member.client.get(f"/jobs/{job['uid']}/notebook/").status_code == 404
    platform.granted("POST", f"jobs/{job['uid']}/stop/")


ECHO = """#!{python}
import http.server, json, os, socketserver

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        text = json.dumps({{"headers": list(self.headers.items()), "size": len(body)}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        for cookie in ("theirs=1", "up=1; Domain=localhost", "gpucloud-notebook=stolen"):
            self.send_header("Set-Cookie", cookie)
        self.send_header("Clear-Site-Data", '"cookies"')
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST

    def address_string(self):
        return "somebody"

class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

os.umask(0o077)
Server(".notebook.sock", Handler).serve_forever()
"""


def test_no_cookie_of_the_console_and_no_token_of_the_browser_reach_jupyter(
    platform: Platform, tenant: str, member: Browser, tmp_path: Path
) -> None:
    program = tmp_path / "echo-server"
    program.write_text(ECHO.format(python=sys.executable))
    program.chmod(0o755)
    job = start(platform, tenant, command=[str(tmp_path / "echo")])
    origin = origin_of(platform, job["uid"])
    member.follow(job["uid"])
    until(lambda: ready(member, origin), seconds=60, what="the program to answer")
    own = member.cookie
    asked = {"Authorization": "Bearer mine", "Referer": f"{platform.url}/jobs/", "X-Forwarded-For": "192.0.2.1"}
    answer = member.ask(
        f"{origin}/any", "POST", cookie=f"sessionid=secret; {own}; _xsrf=2|a", content=b"y" * 3_000_000,
        headers={**asked, "Origin": origin},
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    got = {name.lower(): value for name, value in answer.json()["headers"]}
    assert answer.json()["size"] == 3_000_000
    assert own.partition("=")[2] not in answer.text
    assert got["cookie"] == "sessionid=secret; _xsrf=2|a"
    assert got["authorization"].startswith("token ")
    assert not {"referer", "origin", "x-forwarded-for"} & got.keys()
    assert answer.headers.get_list("set-cookie") == ["theirs=1"]
    assert "clear-site-data" not in answer.headers
    platform.granted("POST", f"jobs/{job['uid']}/stop/")
