"""Calls of the API as the operator of the filled database."""

import http.client
import json
from typing import Any

from benchmarks.telemetry.stage import Stage


def call(ready: Stage, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the answer's body. Raises AssertionError for a refusal."""
    return call_port(ready.port, ready.filled.token, method, path, body)


def call_port(port: int, token: str, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the body of the answer of the server at this port. Raises AssertionError for a refusal."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection.request(method, f"/api/v1/{path}", json.dumps(body) if body else None, headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert answer.status < 300, (answer.status, text)
    found: dict[str, Any] = json.loads(text)
    return found
