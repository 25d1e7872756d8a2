"""Committed rows of a test do not reach the next one: tests/emptying.py, which replaces Django's own way."""

from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.db import DatabaseError, connection

from apps.quotas.models import AuditEvent, Tenant
from tests.cast import Cast
from tests.emptying import LARGE_BYTES, empty


def one(query: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()[0]


@pytest.mark.django_db(transaction=True)
def test_nothing_is_left_but_the_schema_and_the_database_is_as_strict_as_before(real_cast: Cast) -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE large AS SELECT generate_series(1, 20000) AS number")
    try:
        assert one("SELECT pg_relation_size('large')") > LARGE_BYTES
        # The control: no other user may, and there are rows to remove.
        with pytest.raises(DatabaseError):
            AuditEvent.objects.all().delete()
        assert Tenant.objects.exists()
        empty(connection)
        assert not Tenant.objects.exists()
        assert not AuditEvent.objects.exists()
        assert one("SELECT count(*) FROM large") == 0
        assert Permission.objects.exists()
        assert one("SHOW session_replication_role") == "origin"
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE large")
