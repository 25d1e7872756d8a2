"""Memory of a server after many requests equals that after some."""

import http.client
import itertools
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cast import Cast, give_plenty
from tests.ports import free_port
from tests.processes import eventually
from tests.scheduling.programs import program
from tests.server.test_server_program import KIB, healthy, resident_kib

CLIENTS = 8
# Growth of allocators and caches until they have seen every kind of request.
WARM = 500


def ask_many(port: int, token: str, count: int, begin: int) -> None:
    """Send requests of every kind over one connection: read, refused, not found, created, repeated, malformed."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    claim = json.dumps({"tenant": "acme", "core_request": 1, "memory_mib": 1})
    kinds = itertools.cycle(
        [
            ("GET", "/api/v1/claims/?limit=5", None, {}),
            ("GET", "/api/v1/me/", None, {}),
            ("GET", "/api/v1/nothing/", None, {}),
            ("POST", "/api/v1/claims/?dry_run=true", claim, {}),
            ("POST", "/api/v1/claims/", "{", {}),
            ("GET", "/api/v1/me/", None, {"Authorization": "Bearer gpc_x.y"}),
            ("GET", "/healthz", None, {"X-Long": "x" * 1000}),
            ("GET", "/sign-in/", None, {}),
        ]
    )
    for number, (method, path, body, more) in zip(range(count), kinds, strict=False):
        # Different each time, for caches that would keep it.
        query = f"{'&' if '?' in path else '?'}page={begin + number}" if method == "GET" else ""
        connection.request(method, path + query, body, {**headers, **more})
        answer = connection.getresponse()
        answer.read()
        assert answer.status < 500, (method, path, answer.status)
    connection.close()


@pytest.mark.timeout(1800)
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("requests", "mib"), [(1000, 8), pytest.param(20_000, 24, marks=pytest.mark.long)])
def test_memory_is_flat_over_many_requests(real_cast: Cast, requests: int, mib: int) -> None:
    """A leak of 8 KiB a request is found at once, and one of 1 KiB by the long count."""
    give_plenty(real_cast.acme)
    port = free_port()
    options = ("--port", str(port), "--log-level", "error")
    with program("-m", "gpucloud.server", *options, THROTTLE_PER_SECOND="0", DATABASE_POOL_SIZE="8") as server:
        assert eventually(lambda: healthy(port), seconds=60)

        def drive(count: int, begin: int) -> int:
            with ThreadPoolExecutor(CLIENTS) as clients:
                each = count // CLIENTS
                list(
                    clients.map(
                        lambda n: ask_many(port, str(real_cast.max.token), each, begin + n * each), range(CLIENTS)
                    )
                )
            return resident_kib(server.pid)

        warm = drive(WARM, 0)
        grown = drive(requests, WARM) - warm
        assert grown < mib * KIB
