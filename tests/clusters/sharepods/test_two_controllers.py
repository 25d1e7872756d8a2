"""Two controllers of SharePods, as during a takeover: neither ends the other's objects, and one of them leads."""

import types
import typing
from typing import Any

import psycopg
import pytest
from django.db import connection

from apps.clusters.kube.client import Client
from apps.clusters.management import leading
from apps.clusters.management.commands.sharepods import Command
from apps.clusters.models import Cluster, SharePod
from apps.clusters.services import watchers
from apps.clusters.sharepods import claims
from apps.clusters.sharepods.controller import SharePods
from apps.clusters.watches import Watches
from apps.scheduling.models import Claim
from tests.cast import Cast, Machine, assert_books_agree
from tests.clusters.sharepods.test_moved import Kube, cluster, kube, machine, run_controller

__all__ = ["cluster", "kube", "machine"]


def test_a_sharepod_that_was_not_heard_of_yet_keeps_its_share(cluster: Cluster, kube: Kube) -> None:
    """The other one received it, and made its claim; a watch that hangs is noticed minutes later."""
    SharePods(cluster, typing.cast(Client, kube)).reconcile([], kube.pods)
    assert not kube.ending()
    assert Claim.objects.get().state == "active"
    # Another object has its name by now: it is gone.
    meta = {**kube.sharepods[0]["metadata"], "uid": "shp-2"}
    kube.sharepods = [{**kube.sharepods[0], "metadata": meta}]
    SharePods(cluster, typing.cast(Client, kube)).reconcile([], kube.pods)
    assert kube.ending()


def test_of_two_that_see_it_at_once_one_makes_its_claim(
    cast: Cast, cluster: Cluster, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, kube = claims.make, Kube()

    def late(**facts: Any) -> SharePod:
        make(**facts)
        return make(**facts)

    monkeypatch.setattr(claims, "make", late)
    run_controller(cluster, kube)
    assert (Claim.objects.count(), SharePod.objects.count()) == (1, 1)
    # The quicker controller decides about it.
    assert "status" not in kube.sharepods[0]
    assert_books_agree()


def test_one_leads_and_others_wait(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    command, looks = Command(), list[str]()

    def sleep(seconds: float) -> None:
        command.stopping = True

    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr(leading, "connection", types.SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(Watches, "refresh", lambda self: looks.append("look"))
    facts = connection.get_connection_params()
    with psycopg.connect(host=facts["host"], user=facts["user"], dbname=facts["dbname"]) as other:
        other.execute("SELECT pg_advisory_lock(%s)", [watchers.SHAREPODS])
        command.lead()
        assert looks == []
        # Another process watches the clusters' pods.
        assert not watchers.is_led()
        # Not left to the end of its connection, which the server notices only after this process.
        other.execute("SELECT pg_advisory_unlock(%s)", [watchers.SHAREPODS])
    command.stopping = False
    command.lead()
    assert looks == ["look"]
    assert watchers.is_led(watchers.SHAREPODS)
