"""Jumps of a server's clock: a node is lost after its silence, whatever the time of day was before."""

from datetime import timedelta

import pytest
from django.utils import timezone

from apps.nodes.models import Node
from apps.nodes.models.node import FRESH
from apps.scheduling.services.claims import absences
from tests.cast import Cast, Machine

pytestmark = pytest.mark.django_db


@pytest.fixture
def machine(cast: Cast) -> Machine:
    return Machine("gpu1", cast.pool)


def seen(machine: Machine, **ahead: int) -> None:
    Node.objects.filter(pk=machine.node.pk).update(last_seen_at=timezone.now() + timedelta(**ahead))


def last_seen(machine: Machine) -> timedelta:
    """Return how far ahead its last heartbeat is."""
    at = Node.objects.get(pk=machine.node.pk).last_seen_at
    assert at is not None
    return at - timezone.now()


def test_a_node_that_dies_after_the_clock_was_set_back_is_lost_as_soon_as_any_other(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ten minutes are taken back, and the node sends nothing more.
    seen(machine, minutes=10)
    assert absences.watch_nodes() == 0
    assert last_seen(machine) <= timedelta(0)
    later = timezone.now() + absences.SILENT + timedelta(seconds=1)
    monkeypatch.setattr(timezone, "now", lambda: later)
    assert absences.watch_nodes() == 1
    assert Node.objects.get(pk=machine.node.pk).lost_at is not None


def test_a_clock_that_goes_forward_loses_no_node_that_speaks_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen(machine, seconds=0)
    later = timezone.now() + timedelta(minutes=10)
    monkeypatch.setattr(timezone, "now", lambda: later)
    seen(machine, seconds=0)
    assert absences.watch_nodes() == 0
    assert Node.objects.get(pk=machine.node.pk).lost_at is None


def test_another_servers_clock_may_be_a_little_ahead(machine: Machine) -> None:
    ahead = FRESH - timedelta(seconds=2)
    seen(machine, seconds=int(ahead.total_seconds()))
    absences.watch_nodes()
    assert last_seen(machine) > timedelta(0)
