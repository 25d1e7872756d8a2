"""The ClusterRoles of the watch and the extender: what the code asks of API servers, and what the chart allows."""

import pytest

from apps.clusters.services import connections
from tests.clusters.rights import right_of, rights_of
from tests.helm import needs_helm

pytestmark = needs_helm
# `resourceclaims/driver` with this verb is asked by the API server of a driver that patches the status of devices.
ASKED_BY_THE_API_SERVER = ("resource.k8s.io", "resourceclaims/driver", "arbitrary-node:patch", "gpucloud.io")


@pytest.mark.parametrize(
    ("role", "needs"),
    [("gpucloud-cluster", connections.NEEDS), ("gpucloud-devices", connections.DEVICE_NEEDS)],
)
def test_the_chart_gives_exactly_the_rights_that_a_connection_test_asks_for(
    role: str, needs: tuple[connections.Need, ...]
) -> None:
    """The tests of the watch compare its requests with the same list: `rights.require` in their API."""
    asked = {(need.group, need.resource, verb, need.name) for need in needs for verb in need.verbs}
    assert asked == rights_of(role)
    assert role != "gpucloud-devices" or ASKED_BY_THE_API_SERVER in asked


def test_the_right_of_a_request_is_found_in_its_path() -> None:
    group = "resource.k8s.io"
    for method, path, right in (
        ("GET", f"/apis/{group}/v1/resourceslices", (group, "resourceslices", "list", "")),
        ("DELETE", f"/apis/{group}/v1/deviceclasses/x", (group, "deviceclasses", "delete", "")),
        (
            "PATCH",
            f"/apis/{group}/v1/namespaces/a/resourceclaims/b/status",
            (group, "resourceclaims/status", "patch", ""),
        ),
        ("GET", "/api/v1/nodes/n", ("", "nodes", "get", "")),
    ):
        assert right_of(method, path) == right
