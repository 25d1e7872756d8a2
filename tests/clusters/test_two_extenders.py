"""Two extenders as processes, on a real control plane: one answers, and the other one after it is killed."""

import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest

from apps.clusters.services import clusters
from apps.quotas.principals import SYSTEM
from tests.cast import Cast
from tests.clusters.control_plane import ControlPlane
from tests.clusters.paper import container, pod, request
from tests.clusters.test_commands import command
from tests.ports import free_port
from tests.processes import eventually, http_status

pytestmark = [pytest.mark.control_plane, pytest.mark.serial, pytest.mark.timeout(300)]
PATH = "/apis/coordination.k8s.io/v1/namespaces/default/leases/two-extenders"


def is_well(port: int) -> bool:
    return http_status(port, "/healthz") == 200


def asked(port: int) -> int:
    body = request(pod("none", container(10, 1)), [])
    return httpx.post(f"http://127.0.0.1:{port}/scheduler/predicates", content=body).status_code


def test_a_killed_one_is_replaced_and_one_that_ends_gives_the_lease_back(
    real_cast: Cast, real_plane: ControlPlane, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    kubeconfig, client = real_plane.kubeconfig(), real_plane.client()
    clusters.connect(principal=SYSTEM, name="two", pool=real_cast.pool, kubeconfig=kubeconfig)
    ports = free_port(), free_port()
    logs = [tmp_path / f"{port}.log" for port in ports]
    lease = "default/two-extenders"
    with (
        command("extender", logs[0], EXTENDER_PORT=str(ports[0]), EXTENDER_LEASE=lease) as first,
        command("extender", logs[1], EXTENDER_PORT=str(ports[1]), EXTENDER_LEASE=lease) as second,
    ):
        for number in (0, 1):
            assert eventually(partial(is_well, ports[number]), seconds=60), logs[number].read_text()
        assert eventually(lambda: sorted(http_status(port, "/leading") for port in ports) == [200, 503], seconds=30)
        leader = 0 if http_status(ports[0], "/leading") == 200 else 1
        processes, other = (first, second), 1 - leader
        assert (asked(ports[leader]), asked(ports[other])) == (200, 503)
        holder = client.get(PATH)["spec"]["holderIdentity"]
        processes[leader].kill()
        begun = time.monotonic()
        assert eventually(lambda: http_status(ports[other], "/leading") == 200, seconds=60), logs[other].read_text()
        record_property("takeover_s", time.monotonic() - begun)
        assert asked(ports[other]) == 200
        assert client.get(PATH)["spec"]["holderIdentity"] != holder
        processes[other].send_signal(signal.SIGTERM)
        processes[other].wait(timeout=30)
    assert client.get(PATH)["spec"]["holderIdentity"] == "", logs[other].read_text()
