"""Fixtures for the embedded services by themselves, not the ones that the suite runs on."""

import pytest


@pytest.fixture
def unset_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset both addresses, as for a user without servers."""
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)
