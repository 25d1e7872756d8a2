"""Checks of nodes that an earlier version stored."""

from typing import Any

import pytest
from django.db import connection

from apps.clusters import checks
from apps.nodes.models import Node
from tests.cast import Cast, Machine


def found() -> list[tuple[str | None, str]]:
    return [(one.id, one.msg) for one in checks.check_nodes(databases=["default"])]


def test_nodes_of_one_name_are_named(cast: Cast, settings: Any) -> None:
    for name in ("a", "b", "c"):
        Machine(name, cast.pool)
    Node.objects.filter(name="c").update(kubernetes_node="worker-2")
    assert found() == []
    Node.objects.filter(name__in=("a", "b")).update(kubernetes_node="worker")
    assert found() == [(checks.TAKEN_TWICE, "Nodes a, b have the same name in Kubernetes, worker.")]
    # Without a database, as when an image is built.
    assert checks.check_nodes(databases=None) == []


def test_a_driver_without_a_key_is_warned_of(cast: Cast, settings: Any) -> None:
    Machine("a", cast.pool)
    assert found() == []
    Node.objects.update(dra=True)
    [(kind, words)] = found()
    assert kind == checks.NO_KEY
    assert "ADMISSION_DEVICES_KEYS is not set" in words
    settings.ADMISSION_DEVICES_KEYS = ["k" * 32]
    assert found() == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    "before", ["ALTER TABLE nodes_node RENAME TO later", "ALTER TABLE nodes_node RENAME COLUMN dra TO later"]
)
def test_a_database_before_its_migrations_has_no_warnings(before: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(before)
    assert found() == []
