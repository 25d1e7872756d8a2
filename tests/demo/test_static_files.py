"""Static files for browsers: compressed, cached permanently, and made once per content."""

import gzip
import json
import re
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.demo.nodes import ROOT
from deploy.demo.static import collect
from gpucloud.fastpath.static_files import StaticFilesMiddleware

STYLE = "css/site.css"
Asked = Callable[..., Awaitable[tuple[int, dict[str, str], bytes]]]


@pytest.fixture(scope="module")
def place() -> Path:
    """Return their directory."""
    return collect()


@pytest.fixture
def get(place: Path, settings: Any) -> Asked:
    """Request a path from the middleware; a request passed on to the application is answered with 418."""
    settings.STATIC_ROOT = str(place)
    settings.WHITENOISE_USE_FINDERS = False
    settings.STORAGES = settings.STORAGES | {"staticfiles": {"BACKEND": "gpucloud.fastpath.static_files.Named"}}

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 418, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    made = StaticFilesMiddleware(application)

    async def ask(path: str, headers: dict[str, str], method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope: Any = {"type": "http", "scheme": "http", "method": method, "path": path, "headers": pairs}
        receive: Any = None
        await made(scope, receive, send)
        start, body = sent
        return start["status"], {k.decode(): v.decode() for k, v in start["headers"]}, body["body"]

    return ask


def names(place: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((place / "staticfiles.json").read_text())["paths"]
    return found


def test_what_is_there_for_this_content_is_not_made_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("it was made again")

    monkeypatch.setattr(subprocess, "run", never)
    assert collect() == place


def test_all_sheets_are_served_as_one(place: Path) -> None:
    whole = (place / names(place)[STYLE]).read_text()
    assert "@import" not in whole
    parts = [
        ROOT / "static/css" / name for name in re.findall(r'@import "([^"]+)"', (ROOT / "static" / STYLE).read_text())
    ]
    assert {part.resolve() for part in parts} >= set((ROOT / "static/css").glob("*.css")) - {ROOT / "static" / STYLE}
    ends = [whole.index(part.read_text().strip()) for part in parts]
    assert ends == sorted(ends)


def test_modules_name_each_other_by_their_content(place: Path) -> None:
    known = names(place)
    page = (place / known["js/page.js"]).read_text()
    imported = re.findall(r'(?:from |import\()"\./([^"]+)"', page)
    wanted = ("js/live.js", "js/charts.js", "js/words.js")
    assert sorted(imported) == sorted(known[name].removeprefix("js/") for name in wanted)


async def test_a_file_is_sent_compressed_and_may_be_kept_for_good(place: Path, get: Asked) -> None:
    url = f"/static/{names(place)[STYLE]}"
    status, headers, body = await get(url, {"accept-encoding": "gzip"})
    assert status == 200
    assert headers["content-encoding"] == "gzip"
    assert int(headers["content-length"]) == len(body) < 30_000
    assert gzip.decompress(body) == (place / names(place)[STYLE]).read_bytes()
    assert "immutable" in headers["cache-control"]
    assert headers["x-content-type-options"] == "nosniff"
    # A client that has it gets 304, and a HEAD request gets no body.
    assert (await get(url, {"if-none-match": headers["etag"]}))[::2] == (304, b"")
    assert (await get(url, {}, "HEAD"))[::2] == (200, b"")
    assert (await get(url, {}, "POST"))[0] == 405


async def test_what_is_no_file_is_left_to_the_application(get: Asked) -> None:
    # A name without its content hash does not exist, so no changing file is cached.
    for path in (f"/static/{STYLE}", "/static/../manage.py", "/static/", "/"):
        assert (await get(path, {}))[0] == 418


async def test_where_only_tls_is_wanted_a_file_in_the_clear_is_left_to_who_redirects(
    place: Path, get: Asked, settings: Any
) -> None:
    url = f"/static/{names(place)[STYLE]}"
    settings.SECURE_SSL_REDIRECT = True
    assert (await get(url, {}))[0] == 418
    settings.SECURE_HSTS_SECONDS = 3600
    status, headers, _ = await get(url, {"x-forwarded-proto": "https"})
    assert (status, headers["strict-transport-security"]) == (200, "max-age=3600")
    settings.SECURE_SSL_REDIRECT = False
    assert "strict-transport-security" not in (await get(url, {}))[1]
