"""One installation for all tests of this folder: built once, brought up once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.engine import Installation, missing


@pytest.fixture(scope="session")
def engine() -> None:
    """Skip, visibly, if there is no container engine or a base image is missing."""
    if (reason := missing()) is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def installation(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Start the platform of this checkout: `secrets.sh` and one `docker compose up`, and nothing else."""
    it = Installation(tmp_path_factory.mktemp("installation") / "state")
    it.make_secrets()
    try:
        it.up("--build")
        yield it
    finally:
        it.down()


@pytest.fixture(scope="session")
def tenant(installation: Installation) -> str:
    """Create a tenant with quota for every claim of these tests."""
    return installation.new_tenant("containers", core=400, memory_mib=65536)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Return a directory for one test's files, under a path that containers may mount."""
    return tmp_path
