"""ResourceClaims whose API server does not wait for the webhook any more: they are not stored, and not charged."""

import json
import ssl
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction

from apps.clusters.dra import charging
from apps.clusters.models import DeviceClaim
from apps.clusters.services import bindings, clusters
from apps.quotas.models import ResourceQuota
from apps.quotas.principals import SYSTEM
from tests.cast import GIB, Cast, assert_books_agree, give, used
from tests.clusters import authority
from tests.clusters.admission.asking import review
from tests.clusters.admission.serving import serve
from tests.clusters.dra import things

pytestmark = [pytest.mark.django_db(transaction=True)]


class Webhook:
    """The webhook as the API server of the cluster `kube` calls it."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url = f"{url}{charging.PATH}/kube"
        self._context = ssl.create_default_context(cafile=str(directory / "ca.crt"))

    def ask(self, name: str, *, seconds: int) -> dict[str, Any]:
        """Return the response about a new ResourceClaim of 10 percent, for which the API server waits so long."""
        thing = things.claim(name, "acme", core=10)
        thing["metadata"]["uid"] = str(uuid.uuid4())
        url = f"{self._url}?timeout={seconds}s"
        with urllib.request.urlopen(url, data=review(thing), context=self._context, timeout=30) as answer:  # noqa: S310
            return dict(json.loads(answer.read())["response"])


@pytest.fixture
def webhook(real_cast: Cast, tmp_path: Path) -> Iterator[Webhook]:
    give(real_cast.acme, core_percent=100, memory_mib=100 * GIB)
    cluster = clusters.connect(principal=SYSTEM, name="kube", pool=real_cast.pool, in_cluster=True)
    bindings.bind(principal=SYSTEM, cluster=cluster, tenant=real_cast.acme, namespace="acme")
    with serve(authority.make(tmp_path), charging.application) as url:
        yield Webhook(url, tmp_path)


def test_a_claim_is_charged_within_the_time(webhook: Webhook, real_cast: Cast) -> None:
    assert webhook.ask("one", seconds=15)["allowed"]
    assert used(real_cast.acme)["core_percent"] == 10


def test_claims_that_wait_too_long_for_their_tenants_quota_are_not_charged(webhook: Webhook, real_cast: Cast) -> None:
    """More than the webhook has threads: some wait for the quota, the others for a thread."""
    said: list[dict[str, Any]] = []

    def ask(number: int) -> None:
        said.append(webhook.ask(f"c{number}", seconds=1))

    hands = [threading.Thread(target=ask, args=(number,)) for number in range(40)]
    with transaction.atomic():
        list(ResourceQuota.objects.select_for_update().filter(tenant=real_cast.acme))
        for hand in hands:
            hand.start()
        time.sleep(1.5)
    for hand in hands:
        hand.join()
    connection.close()
    assert {one["allowed"] for one in said} == {False}
    assert not DeviceClaim.objects.exists()
    assert used(real_cast.acme)["core_percent"] == 0
    assert_books_agree()
