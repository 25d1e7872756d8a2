"""Alerts in a real Alertmanager: each kind is taken, and what ends is resolved."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from apps.quotas.models import EventKind, WebhookDelivery
from apps.quotas.principals import SYSTEM
from apps.quotas.services.webhooks import hooks, outbox, sending
from apps.quotas.services.webhooks.formats import alertmanager
from tests.cast import Cast
from tests.ports import free_port
from tests.quotas.test_webhook_formats import HOSTILE, event

# Under the name of Debian's package, or of the project's own archive.
PROGRAM = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="Alertmanager is not on the PATH")
CONFIGURATION = "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n"


def fetch(url: str, body: Any = None) -> Any:
    sent = None if body is None else json.dumps(body).encode()
    request = Request(url, sent, {"Content-Type": "application/json"})  # noqa: S310 - loopback
    with urlopen(request, timeout=5) as answer:  # noqa: S310
        return json.loads(answer.read() or b"null")


@pytest.fixture
def alerts_url(tmp_path: Path, settings: Any) -> Iterator[str]:
    """Start Alertmanager; yield the URL of its alerts."""
    settings.WEBHOOK_NETWORKS = [ip_network("127.0.0.0/8")]
    port = free_port()
    (tmp_path / "alertmanager.yml").write_text(CONFIGURATION)
    assert PROGRAM is not None
    command = [
        PROGRAM, f"--config.file={tmp_path}/alertmanager.yml", f"--storage.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
    ]  # fmt: skip
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            until_ready(f"http://127.0.0.1:{port}/api/v2/status")
            yield f"http://127.0.0.1:{port}/api/v2/alerts"
        finally:
            process.terminate()


def until_ready(url: str) -> None:
    end = time.monotonic() + 20
    while True:
        try:
            fetch(url)
            return
        except (URLError, ConnectionError):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def names(url: str) -> list[str]:
    return sorted(alert["labels"]["alertname"] for alert in fetch(url))


def test_an_alert_begins_and_ends(cast: Cast, alerts_url: str) -> None:
    chosen = ["claim.idle", "node.lost"]
    hooks.create(principal=SYSTEM, tenant=None, url=alerts_url, format="alertmanager", events=chosen)
    facts: dict[str, Any] = {"claim": {"uid": "u-1", "name": HOSTILE, "pool": "default"}}
    outbox.tell("claim.idle", tenant=cast.acme, **facts, why="No kernel ran.")
    outbox.tell("node.lost", tenant=None, node="gpu-1", pool="default", claims=3)
    sending.deliver()
    assert names(alerts_url) == ["GpucloudClaimIdle", "GpucloudNodeLost"]
    outbox.tell("claim.awake", tenant=cast.acme, **facts)
    sending.deliver()
    assert names(alerts_url) == ["GpucloudNodeLost"]
    outbox.tell("node.returned", tenant=None, node="gpu-1", pool="default", claims=3)
    sending.deliver()
    assert names(alerts_url) == []
    assert set(WebhookDelivery.objects.values_list("state", "status_code")) == {("delivered", 200)}


def test_every_kind_is_taken(alerts_url: str, settings: Any) -> None:
    settings.PUBLIC_URL = "https://gpus.example.org"
    for kind in EventKind.values:
        now = event(kind).at
        fetch(alerts_url, alertmanager.message([event(kind, HOSTILE)], EventKind.values, now))
