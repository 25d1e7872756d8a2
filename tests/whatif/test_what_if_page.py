"""The page of a pool's what-if: nothing yet, the progress, no claims, the figures."""

import pytest
from django.test import Client

from apps.quotas.models import User
from apps.whatif import services
from apps.whatif.models import WhatIf
from tests.cast import Cast, Machine, placed
from tests.scheduling.clock import Clock

PAGE = "/pools/default/what-if/"


def text(client: Client, **headers: str) -> str:
    return " ".join(client.get(PAGE, headers=headers).content.decode().split())


@pytest.mark.django_db
def test_a_what_if_is_ordered_watched_and_read(cast: Cast, machine: Machine, clock: Clock) -> None:
    client = Client()
    client.force_login(User.objects.get(username="anna"))
    assert client.get(PAGE).status_code == 403
    client.force_login(User.objects.get(username="olga"))
    assert "No what-if yet" in text(client)
    sent = {"days": 2, "turns": "on", "mig": "on", "act": "apply"}
    assert "Choose at least one kind" in client.post(PAGE, {"days": 2, "act": "apply"}).content.decode()
    assert client.post(PAGE, sent).status_code == 302
    row = WhatIf.objects.get()
    assert (row.days, row.kinds) == (2, ["turns", "mig"])
    assert 'hx-trigger="every 2s"' in (runs := text(client, hx_request="true"))
    assert "Replaying: 0 %" in runs
    assert "<html" not in runs
    services.run(row.pk, str(row.run))
    assert "No claims in the last 2 days" in text(client)
    placed(cast, machine)
    clock.advance(hours=1)
    client.post(PAGE, sent)
    row.refresh_from_db()
    services.run(row.pk, str(row.run))
    shown = text(client)
    assert "1 claim of the last 2 days." in shown
    assert "Do not fit: No GPU of its model can be in MIG mode" in shown
    assert "MPS, one tenant per GPU</th>" not in shown
    assert "every 2s" not in shown


@pytest.mark.django_db
def test_waits_of_tenants_are_rows_of_the_table(cast: Cast, machine: Machine, clock: Clock) -> None:
    client = Client()
    client.force_login(User.objects.get(username="olga"))
    page = text(client)
    assert 'name="fair-share-decayed"' in page
    placed(cast, machine, core_request=10)
    placed(cast, machine, core_request=10, tenant=cast.globex)
    clock.advance(hours=1)
    client.post(PAGE, {"days": 1, "fair-share-current": "on", "fair-share-decayed": "on", "act": "apply"})
    row = WhatIf.objects.get()
    assert row.kinds == ["fair-share-current", "fair-share-decayed"]
    services.run(row.pk, str(row.run))
    page = text(client)
    assert "Fair share: decayed</th>" in page
    assert "Mean wait of acme" in page
    assert "Mean wait of globex" in page
