"""Requests of strangers, however many, do not fill the log."""

import logging
from collections.abc import Iterator

import pytest
from django.test import Client

from gpucloud import logs

HOSTS, UVICORN = logging.getLogger("django.security.DisallowedHost"), logging.getLogger("uvicorn.error")


def filters() -> list[logs.Occasional]:
    """Return the filters of both loggers; each set-up of Django in this process has added one to each."""
    return [each for logger in (HOSTS, UVICORN) for each in logger.filters if isinstance(each, logs.Occasional)]


def begin_a_minute() -> None:
    """Let the next record of each kind pass."""
    for each in filters():
        each._next_at = 0.0


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """Return the output of a handler of the root logger, in our format."""
    written: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(logs.OneLine("{levelname} {message}", style="{").format(record))

    assert filters()
    for each in filters():
        each._left_out = 0
    begin_a_minute()
    handler = Handler()
    logging.getLogger().addHandler(handler)
    yield written
    logging.getLogger().removeHandler(handler)


def test_a_foreign_host_is_one_line_a_minute_and_no_traceback(lines: list[str]) -> None:
    client = Client(raise_request_exception=False)
    for path in ("/", "/api/v1/me/", "/healthz", "/nothing") * 10:
        assert client.get(path, headers={"Host": "evil.example"}).status_code == 400
    said = [line for line in lines if "evil.example" in line]
    assert len(said) == 1
    assert said[0].startswith("WARNING Invalid HTTP_HOST header")
    assert "Traceback" not in "".join(lines)
    begin_a_minute()
    client.get("/", headers={"Host": "evil.example"})
    assert "(39 more like this since the last line)" in lines[-1]


def test_requests_that_are_none_are_a_line_a_minute_and_faults_are_all_logged(lines: list[str]) -> None:
    for _ in range(10):
        UVICORN.warning("Invalid HTTP request received.")
        UVICORN.error("Exception in ASGI application")
    assert sum("Invalid HTTP" in line for line in lines) == 1
    assert sum("Exception in ASGI" in line for line in lines) == 10
