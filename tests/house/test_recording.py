"""A replayed cast is the one that the services make, under other keys, tokens and times."""

from datetime import datetime
from typing import Any

import pytest
from django.apps import apps
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from apps.quotas.models import ResourceQuota, Token
from tests.cast import PLENTY, Cast, Machine, RecordedCast, give, give_plenty, make_cast, placed, used

pytestmark = pytest.mark.django_db


def contents() -> dict[str, list[dict[str, str]]]:
    """Return all rows as texts, by table: links as what they lead to, times and tokens as one word each.

    Keys of quotas in the audit log are numbers.
    """
    secrets = [secret for pair in Token.objects.values_list("key", "digest") for secret in pair]
    quotas = {
        str(pk): f"quota {at}"
        for at, pk in enumerate(ResourceQuota.objects.order_by("pk").values_list("pk", flat=True))
    }

    def text(name: str, value: Any) -> str:
        found = "time" if isinstance(value, datetime) else str(value)
        found = quotas.get(found, found) if name == "object_id" else found
        for secret in secrets:
            found = found.replace(secret, "secret")
        return found

    return {
        model.__name__: [
            {field.name: text(field.name, getattr(row, field.name)) for field in model._meta.concrete_fields[1:]}
            for row in model._default_manager.order_by("pk")
        ]
        for model in apps.get_models()
        if model.__module__.startswith("apps.") and model._default_manager.exists()
    }


def test_a_replayed_cast_has_the_rows_of_the_services() -> None:
    with transaction.atomic():
        recorded = RecordedCast()
        transaction.set_rollback(True)
    with transaction.atomic():
        make_cast()
        made = contents()
        transaction.set_rollback(True)
    with CaptureQueriesContext(connection) as sent:
        recorded.again()
    assert len(sent) == 2
    assert contents() == made
    assert len(made["AuditEvent"]) > 10


def test_plenty_is_what_the_services_give() -> None:
    with transaction.atomic():
        cast = make_cast()
        for tenant in (cast.acme, cast.globex):
            give(tenant, **PLENTY)
        given = contents()
        transaction.set_rollback(True)
    cast = make_cast()
    with CaptureQueriesContext(connection) as sent:
        give_plenty(cast.acme, cast.globex)
    assert len(sent) == 6
    assert contents() == given
    assert len(given["ResourceQuota"]) == len(given["LedgerEntry"]) == 4


def test_plenty_counts_what_is_held() -> None:
    cast = make_cast()
    give(cast.acme, **PLENTY)
    placed(cast, Machine("gpu1", cast.pool))
    ResourceQuota.objects.all().delete()
    give_plenty(cast.acme)
    assert used(cast.acme) == {"core_percent": 30, "memory_mib": 8192}


def test_replayed_casts_share_no_key_and_no_token() -> None:
    with transaction.atomic():
        recorded = RecordedCast()
        transaction.set_rollback(True)
    seen: set[Any] = {
        recorded.cast.acme.pk,
        recorded.cast.pool.pk,
        recorded.cast.max.token,
        recorded.cast.member.user_id,
    }
    for _ in range(2):
        with transaction.atomic():
            cast = recorded.again()
            mine = {cast.acme.pk, cast.pool.pk, cast.max.token, cast.member.user_id}
            transaction.set_rollback(True)
        assert not mine & seen
        seen |= mine


def test_a_replayed_cast_acts_as_any_other(settings: Any) -> None:
    recorded = RecordedCast()
    Token.objects.all().delete()
    for row in (recorded.cast.acme, recorded.cast.globex):
        row.memberships.all().delete()
    connection.cursor().execute("DELETE FROM quotas_tenant; DELETE FROM quotas_pool; DELETE FROM quotas_user")
    settings.SECRET_KEY = "another one"
    cast: Cast = recorded.again()
    give_plenty(cast.acme)
    claim, _ = placed(cast, Machine("gpu1", cast.pool), principal=cast.member)
    assert cast.max.get(f"claims/{claim.uid}/").body["tenant"] == "acme"
    assert cast.gus.get(f"claims/{claim.uid}/").status == 404
    assert cast.acme.memberships.count() == 3
    assert {answer.status for answer in (cast.olga.get("users/"), cast.vera.get("claims/"))} == {200}
