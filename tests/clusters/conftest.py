"""The cast; and a real control plane, if there is one."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.clusters.services import scheduler_configuration
from tests.cast import cast, real_cast
from tests.clusters import control_plane as planes
from tests.clusters.extenders import Listening
from tests.clusters.real import real_plane

__all__ = ["cast", "real_cast", "real_plane"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, visibly, tests that need a control plane if there is none."""
    if (why := planes.missing()) is None:
        return
    for item in items:
        if item.get_closest_marker("control_plane"):
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="module")
def extender() -> Iterator[Listening]:
    """Return a listener of the extender's without a cluster."""
    with Listening() as it:
        yield it


@pytest.fixture(scope="module")
def control_plane(extender: Listening) -> Iterator[planes.ControlPlane]:
    """Start etcd, API server, controllers, and a scheduler that calls the extender."""
    config = scheduler_configuration.configuration(scheduler_configuration.extender(extender.url))
    with (
        tempfile.TemporaryDirectory(prefix="gpucloud-kube-") as directory,
        planes.ControlPlane(Path(directory), scheduler_config=config) as it,
    ):
        extender.begin("kube", it.client())
        yield it
