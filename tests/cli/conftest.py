"""Users of the command line: Olga the operator, Max the member of a tenant of the test's own."""

from pathlib import Path

import pytest

from tests.cli.commands import Shell, new_name
from tests.platform import Platform

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group tests with a platform, or each process would start one more."""
    for item in items:
        if item.path.parent == HERE and "platform" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.serial)
            item.add_marker(pytest.mark.timeout(180))


@pytest.fixture
def olga(platform: Platform, tmp_path: Path) -> Shell:
    home = tmp_path / "olga"
    home.mkdir()
    return Shell(home, GPUCLOUD_URL=platform.url, GPUCLOUD_TOKEN_FILE=str(platform.state / "operator.token"))


@pytest.fixture
def tenant(platform: Platform) -> str:
    """Create a tenant with quotas."""
    return platform.new_tenant(new_name("cli"))


@pytest.fixture
def max_(platform: Platform, tenant: str, tmp_path: Path) -> Shell:
    home = tmp_path / "max"
    home.mkdir()
    token = platform.granted("POST", "tokens/", {"name": "max", "tenant": tenant, "role": "member"})["token"]
    return Shell(home, GPUCLOUD_URL=platform.url, GPUCLOUD_TOKEN=token)
