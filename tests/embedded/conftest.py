"""The embedded services are tried by themselves here, not the ones that the suite runs on."""

import pytest


@pytest.fixture
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for somebody who has no servers: neither address is set."""
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)
