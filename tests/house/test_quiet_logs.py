"""What strangers cause as often as they like does not fill the log."""

import logging
from collections.abc import Iterator

import pytest
from django.test import Client

from gpucloud import logs

NAME = "django.security.DisallowedHost"


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What a handler of the root logger writes, formatted as ours are."""
    written: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(logs.OneLine("{levelname} {message}", style="{").format(record))

    (occasional,) = [found for found in logging.getLogger(NAME).filters if isinstance(found, logs.Occasional)]
    occasional._next_at, occasional._left_out = 0.0, 0
    handler = Handler()
    logging.getLogger().addHandler(handler)
    yield written
    logging.getLogger().removeHandler(handler)


def test_a_foreign_host_is_one_line_a_minute_and_no_traceback(
    lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(raise_request_exception=False)
    for path in ("/", "/api/v1/me/", "/healthz", "/nothing") * 10:
        assert client.get(path, headers={"Host": "evil.example"}).status_code == 400
    said = [line for line in lines if "evil.example" in line]
    assert len(said) == 1
    assert said[0].startswith("WARNING Invalid HTTP_HOST header")
    assert "Traceback" not in "".join(lines)
    monkeypatch.setattr(logs.Occasional, "EVERY_SECONDS", 0.0)
    (occasional,) = logging.getLogger(NAME).filters
    occasional._next_at = 0.0  # type: ignore[union-attr]
    client.get("/", headers={"Host": "evil.example"})
    assert lines[-1].endswith("(39 more like this since the last line)")


def test_requests_that_are_none_are_a_line_a_minute_and_faults_are_all_logged(
    lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    uvicorn = logging.getLogger("uvicorn.error")
    (occasional,) = [found for found in uvicorn.filters if isinstance(found, logs.Occasional)]
    monkeypatch.setattr(occasional, "_next_at", 0.0)
    for _ in range(10):
        uvicorn.warning("Invalid HTTP request received.")
        uvicorn.error("Exception in ASGI application")
    assert sum("Invalid HTTP" in line for line in lines) == 1
    assert sum("Exception in ASGI" in line for line in lines) == 10
