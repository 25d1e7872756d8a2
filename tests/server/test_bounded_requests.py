"""Requests are bounded before they are read to their end: number and bytes of headers, and time."""

import itertools
import json
from collections.abc import Iterator

import pytest
from websockets.sync.client import connect

from gpucloud.server import protocol
from tests.server.serving import Connection, send_all, serve, status

BEGIN = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
CHUNKED = (
    b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n"
)
KIB = 1024


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serve() as port:
        yield port


@pytest.fixture
def hurried_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Start a server with a limit of a fraction of a second instead of ten."""
    monkeypatch.setattr(protocol, "REQUEST_SECONDS", 0.4)
    monkeypatch.setattr(protocol, "GRACE_SECONDS", 0.2)
    with serve() as port:
        yield port


def headers(count: int, size: int = 1) -> bytes:
    return b"".join(b"X-%d: %s\r\n" % (number, b"v" * size) for number in range(count))


OVERSIZED = {
    "one header of 96 MiB": [BEGIN, b"X-Long: ", *itertools.repeat(b"v" * 256 * KIB, 384)],
    "one header past 64 KiB": [BEGIN, b"X-Long: ", b"v" * 64 * KIB, b"\r\n\r\n"],
    "a name past 64 KiB": [BEGIN, b"x" * 65 * KIB, b": v\r\n\r\n"],
    "a path past 64 KiB": [b"GET /", b"p" * 65 * KIB, b" HTTP/1.1\r\nHost: localhost\r\n\r\n"],
    "an endless path": [b"GET /", *itertools.repeat(b"p" * 64 * KIB, 64)],
    "many headers past 64 KiB together": [BEGIN, headers(90, 800), b"\r\n"],
    "101 headers": [BEGIN, headers(99), b"\r\n"],
    "300,000 headers": [BEGIN, headers(300_000), b"\r\n"],
    "empty lines for ever": list(itertools.repeat(b"\r\n" * 32 * KIB, 64)),
}
OVERSIZED_ENDS = {
    "101 trailers": [CHUNKED, headers(101), b"\r\n"],
    "an endless trailer": [CHUNKED, b"X-Long: ", *itertools.repeat(b"v" * 64 * KIB, 64)],
    "an endless chunk extension": [CHUNKED.removesuffix(b"0\r\n"), b"1;", *itertools.repeat(b"v" * 64 * KIB, 64)],
}


@pytest.mark.parametrize("pieces", OVERSIZED.values(), ids=OVERSIZED.keys())
def test_a_head_past_its_bounds_is_refused_before_its_end(port: int, pieces: list[bytes]) -> None:
    answer = send_all(port, *pieces)
    # A client that keeps sending may lose the answer to a reset; it never gets another one.
    assert status(answer) in ((431,) if sum(map(len, pieces)) < 256 * KIB else (431, 0)), answer[:200]
    if answer:
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["type"] == "/problems/headers-too-large"


@pytest.mark.parametrize("pieces", OVERSIZED_ENDS.values(), ids=OVERSIZED_ENDS.keys())
def test_what_follows_a_body_is_bounded_like_a_head(port: int, pieces: list[bytes]) -> None:
    """The application has begun to read and may answer at any time: the connection is closed without an answer."""
    assert send_all(port, *pieces) == b""


@pytest.mark.parametrize("http", ["httptools", "h11"])
def test_the_control_is_served_by_uvicorns_own_protocols(http: str) -> None:
    """100 KiB of headers in two pieces; h11 refuses these, but accepts 300 headers."""
    more = [headers(90, 600)] * 2 if http == "httptools" else [headers(300)]
    with serve(http) as port:
        assert status(send_all(port, BEGIN, *more, b"\r\n")) == 200


def test_a_head_within_its_bounds_is_answered(port: int) -> None:
    assert status(send_all(port, BEGIN, headers(98, 600), b"\r\n")) == 200
    assert (
        status(send_all(port, b"GET /" + b"p" * 60 * KIB + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")) == 200
    )


def test_each_request_of_a_connection_is_counted_on_its_own(port: int) -> None:
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\n" + headers(90, 500) + b"\r\n"
    answer = send_all(port, *[request] * 5, BEGIN + b"\r\n")
    assert answer.count(b"HTTP/1.1 200 OK") == 6
    body = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300000\r\n\r\n" + b"b" * 300_000
    answer = send_all(port, body, body, BEGIN + b"\r\n")
    assert answer.count(b'"bytes": 300000') == 2


def test_an_answer_under_way_is_not_mixed_with_a_refusal(port: int) -> None:
    """The second request of the connection is too large while the first one still waits for its body's end."""
    first = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = send_all(port, first + BEGIN + headers(200) + b"\r\n")
    assert answer.count(b"HTTP/1.1") <= 1


def test_trailers_are_no_headers(port: int) -> None:
    """A proxy filters headers; it passes trailers on as they are."""
    answer = send_all(port, CHUNKED, b"X-Forwarded-For: 10.0.0.1\r\nIdempotency-Key: k\r\n\r\n")
    assert status(answer) == 200
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {
        "headers": ["host", "connection", "transfer-encoding"],
        "bytes": 2,
    }


def test_a_request_that_never_ends_is_ended(hurried_server: int) -> None:
    assert status(send_all(hurried_server, BEGIN)) == 408
    assert status(send_all(hurried_server, b"GE")) == 408
    # The application has begun to read: only it may answer.
    assert send_all(hurried_server, b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nfive5") == b""


def test_a_connection_that_sends_nothing_is_ended(hurried_server: int) -> None:
    assert send_all(hurried_server) == b""


def test_a_byte_now_and_then_does_not_keep_a_request_open(hurried_server: int) -> None:
    connection = Connection(hurried_server)
    connection.socket.settimeout(0.05)
    connection.send(BEGIN)
    answer = b""
    for _ in range(10_000):
        try:
            answer = connection.socket.recv(1 << 16)
            break
        except TimeoutError:
            connection.send(b"X")
    connection.socket.close()
    assert status(answer) == 408


def test_a_websocket_outlives_the_time_that_a_request_has(hurried_server: int) -> None:
    with connect(f"ws://127.0.0.1:{hurried_server}/") as websocket:
        # A request that begins now ends in time, and the websocket is older than that.
        assert status(send_all(hurried_server, BEGIN)) == 408
        websocket.send("still here")
        assert websocket.recv() == "still here"


def test_an_upgrade_to_something_else_is_answered_as_a_plain_request(hurried_server: int) -> None:
    """The parser stops at an upgrade; the connection's clock must not go on as if the request were unfinished."""
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    assert status(send_all(hurried_server, request)) == 200


def test_empty_lines_between_requests_do_not_keep_a_connection_open(hurried_server: int) -> None:
    """They are not a request, and end the wait for the next one that uvicorn had begun."""
    answer = send_all(hurried_server, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\r\n")
    assert answer.count(b"HTTP/1.1 200 OK") == 1


@pytest.mark.parametrize("more", [b"\r\n", b"GET / HTTP/1.1\r\nHost:"], ids=["an empty line", "half of the next one"])
def test_a_slow_answer_is_not_cut_off_by_what_the_client_sends_after_its_request(
    hurried_server: int, more: bytes
) -> None:
    answer = send_all(hurried_server, b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n", more)
    assert b'"bytes": 0}' in answer
