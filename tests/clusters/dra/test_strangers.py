"""Callers of the webhook of ResourceClaims: only those with its key charge tenants."""

import json
import ssl
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from apps.clusters.admission import manifests
from apps.clusters.dra import charging
from apps.clusters.models import DeviceClaim
from apps.clusters.services import bindings, clusters
from apps.quotas.principals import SYSTEM
from gpucloud import environment
from tests.cast import GIB, Cast, give, used
from tests.clusters import authority
from tests.clusters.admission.asking import review
from tests.clusters.admission.serving import serve
from tests.clusters.dra import things

pytestmark = [pytest.mark.django_db(transaction=True)]

OLD, NEW = "0" * 32, "a" * 32


@pytest.fixture
def url(real_cast: Cast, tmp_path: Path, settings: Any) -> Iterator[str]:
    settings.ADMISSION_DEVICES_KEYS = [NEW, OLD]
    give(real_cast.acme, core_percent=100, memory_mib=100 * GIB)
    cluster = clusters.connect(principal=SYSTEM, name="kube", pool=real_cast.pool, in_cluster=True)
    bindings.bind(principal=SYSTEM, cluster=cluster, tenant=real_cast.acme, namespace="acme")
    with serve(authority.make(tmp_path), charging.application) as at:
        yield at


def ask(url: str, directory: Path, path: str, **headers: str) -> dict[str, Any]:
    """Return the response about a new ResourceClaim of 10 percent."""
    thing = things.claim("train", "acme", core=10)
    thing["metadata"]["uid"] = str(uuid.uuid4())
    context = ssl.create_default_context(cafile=str(directory / "ca.crt"))
    request = urllib.request.Request(f"{url}{path}?timeout=15s", data=review(thing), headers=headers)  # noqa: S310
    with urllib.request.urlopen(request, context=context, timeout=30) as answer:  # noqa: S310
        return dict(json.loads(answer.read())["response"])


@pytest.mark.parametrize("path", ["", "/kube", "/kube/key.", f"/kube/key.{'b' * 32}", f"/kube/{NEW}"])
def test_a_caller_without_the_key_charges_nothing(url: str, tmp_path: Path, real_cast: Cast, path: str) -> None:
    said = ask(url, tmp_path, f"{charging.PATH}{path}", Authorization=f"Bearer {'b' * 32}")
    assert not said["allowed"]
    assert "apply the webhook configurations again" in said["status"]["message"]
    assert not DeviceClaim.objects.exists()
    assert used(real_cast.acme)["core_percent"] == 0


@pytest.mark.parametrize("cluster", ["", "kube"])
def test_the_printed_configuration_has_the_key(url: str, tmp_path: Path, real_cast: Cast, cluster: str) -> None:
    made = manifests.configurations(ca_bundle=b"", service=("ns", "name"), devices=True, cluster=cluster, key=NEW)
    [path] = [
        webhook["clientConfig"]["service"]["path"]
        for webhook in made[1]["webhooks"]
        if webhook["name"] == "devices.gpucloud.io"
    ]
    assert ask(url, tmp_path, path)["allowed"]
    assert used(real_cast.acme)["core_percent"] == 10


def test_the_previous_key_is_accepted_during_a_rotation(url: str, tmp_path: Path) -> None:
    assert ask(url, tmp_path, f"{charging.PATH}/kube/key.{OLD}")["allowed"]


def test_an_api_server_can_send_the_key_as_a_token(url: str, tmp_path: Path) -> None:
    assert ask(url, tmp_path, f"{charging.PATH}/kube", Authorization=f"Bearer {NEW}")["allowed"]


@pytest.mark.parametrize("key", ["short", "A" * 32, "a/" * 16])
def test_a_key_that_no_path_can_carry_stops_the_start(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMISSION_DEVICES_KEYS", key)
    with pytest.raises(ImproperlyConfigured, match="openssl rand"):
        environment.path_keys("ADMISSION_DEVICES_KEYS")
