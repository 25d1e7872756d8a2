"""Inserts whose unique key is taken; other constraints are no names."""

import pytest
from django.db import IntegrityError

from apps.quotas.models import Pool, Tenant
from apps.quotas.services.names import NameTaken, refuse_taken

pytestmark = pytest.mark.django_db


def test_a_taken_name_is_refused_and_the_transaction_goes_on() -> None:
    Tenant.objects.create(slug="acme", name="ACME")

    def describe() -> NameTaken:
        return NameTaken(f"{Tenant.objects.get(slug='acme').name} has it.")

    with pytest.raises(NameTaken, match="ACME has it"), refuse_taken(describe):
        Tenant.objects.create(slug="acme", name="Another")
    assert list(Tenant.objects.filter(slug="acme").values_list("name", flat=True)) == ["ACME"]


def test_another_constraint_is_not_a_taken_name() -> None:
    with pytest.raises(IntegrityError, match="pool_policy_known"), refuse_taken(lambda: NameTaken("Taken.")):
        Pool.objects.create(name="wrong", sharing_policy="unheard-of")
