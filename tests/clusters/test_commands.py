"""The two long-lived commands as processes: start, output, and end on a signal."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from django.db import connection

from apps.clusters.services import clusters
from apps.quotas.principals import SYSTEM
from tests.cast import Cast
from tests.clusters.control_plane import ControlPlane
from tests.clusters.kubeconfigs import kubeconfig
from tests.ports import free_port
from tests.processes import eventually, http_status

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.serial


@contextmanager
def command(name: str, log: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start `manage.py NAME` on the test's database."""
    facts = connection.get_connection_params()
    url = f"postgresql://{facts['user']}@/{facts['dbname']}?host={facts['host']}"
    # The log of a test that fails says how far the command came.
    environment = {
        **os.environ,
        "LOG_LEVEL": "INFO",
        **variables,
        "DATABASE_URL": url,
        "REDIS_URL": "unix:///nonexistent/valkey.sock",
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "manage.py", name], cwd=ROOT, env=environment, stdout=out, stderr=out
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def test_the_extender_answers_before_it_knows_its_cluster_that_it_does_not(real_cast: Cast, tmp_path: Path) -> None:
    """Without Redis, without a worker, and with a cluster that does not exist."""
    clusters.connect(principal=SYSTEM, name="kube", pool=real_cast.pool, kubeconfig=kubeconfig())
    port = free_port()

    log = tmp_path / "log"
    with command("extender", log, EXTENDER_PORT=str(port)) as process:
        assert eventually(lambda: http_status(port, "/version") == 200, seconds=60), log.read_text()
        assert http_status(port, "/healthz") == 503
        # The caller's address cannot be set by a header.
        told = httpx.get(f"http://127.0.0.1:{port}/version", headers={"X-Forwarded-For": "192.0.2.1"})
        assert told.status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) in (0, -signal.SIGTERM), log.read_text()


@pytest.mark.control_plane
def test_the_extender_answers_once_it_knows_its_cluster(
    real_cast: Cast, control_plane: ControlPlane, tmp_path: Path
) -> None:
    kube = control_plane.kubeconfig()
    clusters.connect(principal=SYSTEM, name="kube", pool=real_cast.pool, kubeconfig=kube)
    port, log = free_port(), tmp_path / "log"

    with command("extender", log, EXTENDER_PORT=str(port)):
        assert eventually(lambda: http_status(port, "/healthz") == 200, seconds=60), log.read_text()


def test_the_watch_says_of_a_cluster_that_is_not_there_that_it_is_not(real_cast: Cast, tmp_path: Path) -> None:
    cluster = clusters.connect(principal=SYSTEM, name="kube", pool=real_cast.pool, kubeconfig=kubeconfig())
    log = tmp_path / "log"

    def unreachable() -> bool:
        cluster.refresh_from_db()
        return cluster.state == "unreachable"

    with command("clusters", log) as process:
        assert eventually(unreachable, seconds=60), log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0, log.read_text()
    assert "does not answer" in cluster.state_reason
