"""Health endpoints for containers: on the same machine, past the proxy that terminates TLS."""

from typing import Any

import pytest
from django.test import Client


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_is_told_in_the_clear_where_all_else_is_sent_to_https(db: None, settings: Any, path: str) -> None:
    settings.SECURE_SSL_REDIRECT = True
    assert Client().get(path).status_code == 200
    assert Client().get(f"{path}/").status_code == 301
    assert Client().get("/sign-in/").status_code == 301
