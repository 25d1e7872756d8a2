"""The server behind nginx with the example of `deploy/proxy/nginx.conf`: TLS, forms, the API, a page's websocket."""

import json
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from http.client import HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import pytest
from django.conf import settings
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from apps.quotas.models import User
from tests.cast import Cast, token_for
from tests.ports import free_port
from tests.processes import eventually
from tests.scheduling.programs import program

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed"),
]
HOST = "gpus.example.org"
PASSWORD = "behind-a-proxy-0"


class Proxy(NamedTuple):
    """A running nginx."""

    port: int
    certificate: Path

    @property
    def origin(self) -> str:
        return f"https://{HOST}:{self.port}"

    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate))

    def call(self, method: str, path: str, body: str | None = None, **headers: str) -> HTTPResponse:
        """Send a request as a browser or a program does: by name and TLS."""
        connection = HTTPSConnection(HOST, self.port, context=self.tls(), timeout=30)
        connection._create_connection = lambda _address, *rest: socket.create_connection(  # type: ignore[attr-defined]
            ("127.0.0.1", self.port), *rest
        )
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        return connection.getresponse()


@pytest.fixture
def proxy(transactional_db: None, tmp_path: Path) -> Iterator[Proxy]:
    """Start a server and nginx before it."""
    behind, port, plain = free_port(), free_port(), free_port()
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", f"/CN={HOST}"]
    named = ["-addext", f"subjectAltName=DNS:{HOST}", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*made, *named], check=True, capture_output=True)
    example = (settings.BASE_DIR / "deploy/proxy/nginx.conf").read_text()
    example = re.sub(r"\n *listen \[::\].*", "", example).replace("/etc/ssl/gpucloud/", f"{tmp_path}/")
    example = example.replace("listen 80;", f"listen 127.0.0.1:{plain};")
    example = example.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl").replace(":8000;", f":{behind};")
    paths = "".join(
        f"{name}_temp_path {tmp_path}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    head = f"daemon off;\npid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\n"
    whole = f"{head}http {{\naccess_log off;\n{paths}{example}}}\n"
    (tmp_path / "nginx.conf").write_text(whole)
    trusted = {"HTTPS_ONLY": "1", "ALLOWED_HOSTS": HOST, "FORWARDED_ALLOW_IPS": "127.0.0.1"}
    with program("-m", "gpucloud.server", "--port", str(behind), "--log-level", "error", **trusted):
        nginx = subprocess.Popen(["nginx", "-p", tmp_path, "-c", tmp_path / "nginx.conf"])
        try:
            it = Proxy(port, certificate)
            assert eventually(lambda: answers(it), seconds=60)
            yield it
        finally:
            nginx.terminate()
            nginx.wait(10)


def answers(proxy: Proxy) -> bool:
    try:
        return proxy.call("GET", "/readyz").status == 200
    except OSError:
        return False


def sign_in(proxy: Proxy) -> str:
    """Sign in by the form; return the cookies of the session."""
    page = proxy.call("GET", "/sign-in/")
    cookie = str(page.headers["Set-Cookie"]).partition(";")[0]
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.read().decode())
    assert token is not None
    form = urlencode({"username": "ada", "password": PASSWORD, "csrfmiddlewaretoken": token[1]})
    kind = "application/x-www-form-urlencoded"
    answer = proxy.call("POST", "/sign-in/", form, Cookie=cookie, Origin=proxy.origin, Content_Type=kind)
    assert answer.status == 302, answer.read()
    cookies = [line.partition(";")[0] for line in answer.headers.get_all("Set-Cookie", [])]
    assert all("Secure" in line for line in answer.headers.get_all("Set-Cookie", []))
    return "; ".join(cookies)


def test_forms_requests_and_websockets_pass_nginx(proxy: Proxy, real_cast: Cast) -> None:
    ada = User.objects.create_user("ada", password=PASSWORD, is_operator=True)
    cookies = sign_in(proxy)
    assert proxy.call("GET", "/", Cookie=cookies).status == 200
    # By the API: an answer, and a body above the limit.
    authority = {"Authorization": f"Bearer {token_for(None, user=ada)}", "Content_Type": "application/json"}
    made = proxy.call("POST", "/api/v1/pools/", json.dumps({"name": "behind"}), **authority)
    assert made.status == 201, made.read()
    assert proxy.call("POST", "/api/v1/pools/", "x" * (2 << 20), **authority).status == 413
    # A page's websocket, and one of another site's page.
    address = f"wss://{HOST}:{proxy.port}/ws/live/?claims=all"

    def opened(origin: str) -> None:
        with (
            socket.create_connection(("127.0.0.1", proxy.port)) as bare,
            connect(
                address,
                sock=bare,
                ssl=proxy.tls(),
                origin=Origin(origin),
                additional_headers={"Cookie": cookies},
            ) as live,
            pytest.raises(TimeoutError),
        ):
            live.recv(timeout=1)  # closed by the server, it would raise ConnectionClosed

    opened(proxy.origin)
    with pytest.raises(InvalidStatus, match="403"):
        opened("https://elsewhere.example.org")
