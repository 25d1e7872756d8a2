"""The schedule of a claim on its page, in the form and in the file of claims."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from apps.scheduling.models import Claim
from tests.cast import Cast, Machine, placed
from tests.suspension.test_pages import browser, page_of

__all__ = ["browser"]
pytestmark = pytest.mark.django_db


def test_it_is_set_on_the_page_shown_there_and_a_column_of_the_file(
    cast: Cast, machine: Machine, browser: Callable[[str], Client]
) -> None:
    claim, _ = placed(cast, machine)
    client, where = browser("max"), reverse("claim-sharing", args=[claim.uid])
    form = client.get(where).context["form"]
    given = {"weight": 1, "best_effort": "guaranteed", "rebalance": "on", "version": form.initial["version"]}
    answer = client.post(where, {**given, "schedule": "weekdays 9-25"})
    assert "25 is no time of a day" in answer.content.decode()
    assert client.post(where, {**given, "schedule": "mon,wed 22:00-06:00"}).status_code == 302
    assert Claim.objects.get(pk=claim.pk).schedule == "mon,wed 22:00-06:00"
    assert "mon,wed 22:00-06:00" in page_of(client, claim)
    head, row = client.get(f"{reverse('claims')}?format=csv").content.decode().splitlines()[:2]
    assert "schedule" in head.split(",")
    assert "mon,wed 22:00-06:00" in row
