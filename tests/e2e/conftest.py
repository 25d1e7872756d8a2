"""One platform of several replicas for all modules that need it."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.replicas.platform import Replicas

# Longer than a request waits for the database, so that clients see the outage.
FAILOVER_SECONDS = "4"


@pytest.fixture(scope="session")
def replicas() -> Iterator[Replicas]:
    """Start two web servers, schedulers, workers and databases, and the demo's two agents, behind a balancer."""
    with (
        tempfile.TemporaryDirectory(prefix="gpucloud-replicas-") as directory,
        Replicas(Path(directory) / "demo", environment={"FAILOVER_SECONDS": FAILOVER_SECONDS}) as it,
    ):
        yield it
