"""Transactions with several charges lock all quotas first; beside each the control, in which two of them deadlock.

A fraction of a GPU needs the quotas of core and memory, a whole GPU that of `gpus` too, which has the lowest key here.
So a transaction that charges a fraction and then a whole GPU waits for a key below those that it holds.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import OperationalError

from apps.clusters.importing import following
from apps.clusters.models import Cluster
from apps.clusters.services import bindings, clusters
from apps.nodes.models import Node
from apps.quotas.models import Pool
from apps.quotas.principals import SYSTEM
from apps.quotas.services import charging, organisations, tenants
from apps.quotas.services.refusals import QuotaExceeded
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.reclaiming import failover
from apps.scheduling.services.reclaiming.forgetting import forget_node
from tests.cast import Cast, Machine, ask, assert_books_agree, give, lose, placed
from tests.clusters import paper
from tests.clusters.kubeconfigs import kubeconfig
from tests.clusters.test_choosing import ask_extender
from tests.clusters.test_holding import running
from tests.clusters.test_promise_races import waiting_sessions
from tests.clusters.test_recording import pod
from tests.processes import eventually
from tests.racing import race

pytestmark = pytest.mark.django_db(transaction=True)

RESOURCES = ("gpus", "core_percent", "memory_mib")
TWO = (paper.container(30, 1, "one"), paper.container(100, None, "two"))
WAYS = ("extender", "batch", "pod", "failover", "forgetting")


@pytest.fixture
def cluster(real_cast: Cast) -> Cluster:
    Machine("gpu1", real_cast.pool).stay_online()
    made = clusters.connect(
        principal=SYSTEM, name="kube", pool=real_cast.pool, kubeconfig=kubeconfig(), placement="gpucloud"
    )
    bindings.bind(principal=SYSTEM, cluster=made, namespace="ml", tenant=real_cast.acme)
    return made


def limit(cast: Cast, *, core: int | None = None, inside: bool = False) -> None:
    """Give acme quotas, `gpus` first; with `inside`, to an organisation above it instead of limits of its own."""
    if not inside:
        give(cast.acme, gpus=None, core_percent=core, memory_mib=None)
        return
    row = organisations.create_organisation(principal=SYSTEM, slug="company", name="Company")
    for resource in RESOURCES:
        organisations.create_quota(principal=SYSTEM, organisation=row, pool=None, resource=resource, hard=900_000)
    tenants.change_tenant(principal=SYSTEM, tenant=cast.acme, organisation=row)
    give(cast.acme, core_percent=None, memory_mib=None, gpus=None)


def several(way: str, cast: Cast, cluster: Cluster) -> Callable[[], Any]:
    """Return an act that charges or refunds a fraction, and then a whole GPU, in one transaction."""
    if way == "extender":
        limit(cast, inside=True)
        return partial(ask_extender, cluster, paper.pod("p", *TWO))
    if way == "batch":
        # Together they exceed the quota, so each is charged by itself.
        limit(cast, core=250)
        pods = [pod("a", 30), *(pod(name, 100, gpus=gpu) for name, gpu in (("b", "1"), ("c", "2"), ("d", "3")))]
        return partial(following.follow_many, cluster=cluster, found=[(one, {}) for one in pods])
    if way == "pod":
        limit(cast, inside=True)
        found = running("p", *TWO)
        found["metadata"]["annotations"]["tencent.com/predicate-gpu-idx-1"] = "1"
        return partial(following.follow, cluster=cluster, pod=found, labels={})
    limit(cast)
    machine = Machine("gpu2", cast.pool)
    # The other machine is free for the claims that come meanwhile.
    Node.objects.filter(name="gpu1").update(cordoned=True)
    placed(cast, machine, core_request=30, memory_mib=1)
    placed(cast, machine, core_request=100, memory_mib=1)
    Node.objects.filter(name="gpu1").update(cordoned=False)
    lose(machine)
    if way == "forgetting":
        return partial(forget_node, principal=SYSTEM, node=Node.objects.get(pk=machine.node.pk))
    Pool.objects.update(failover_policy="release", failover_after_seconds=30)
    return failover.drive


def at_once(way: str, cast: Cast, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let another transaction charge a whole GPU once the first of several charges is made; return both results."""
    act, first_is_made = several(way, cast, cluster), threading.Event()

    def paused(change: Callable[..., None]) -> Callable[..., None]:
        def changed(*args: Any, **facts: Any) -> None:
            change(*args, **facts)
            is_first = facts["amounts"] and not first_is_made.is_set()
            if is_first and threading.current_thread().name == "several":
                first_is_made.set()
                assert eventually(lambda: bool(waiting_sessions()), seconds=20)

        return changed

    def first() -> Any:
        threading.current_thread().name = "several"
        return act()

    def other() -> Claim:
        assert first_is_made.wait(20)
        claim = ask(cast, core_request=100, memory_mib=1)
        return release_claim(principal=SYSTEM, claim=claim)

    for name in ("charge", "refund"):
        monkeypatch.setattr(charging, name, paused(getattr(charging, name)))
    return race([first, other])


def deadlocks(results: list[Any]) -> int:
    expected = (QuotaExceeded, OperationalError)
    assert not [one for one in results if isinstance(one, Exception) and not isinstance(one, expected)]
    return sum("deadlock detected" in str(one) for one in results)


@pytest.mark.parametrize("way", WAYS)
def test_several_charges_in_one_transaction_wait_for_nobody(
    real_cast: Cast, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    assert not deadlocks(at_once(way, real_cast, cluster, monkeypatch))
    assert_books_agree()


@pytest.mark.parametrize("way", WAYS)
def test_control_without_all_locks_first_they_deadlock(
    real_cast: Cast, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(charging, "lock_quotas_of", lambda *_, **__: None)
    assert deadlocks(at_once(way, real_cast, cluster, monkeypatch)) == 1
    assert_books_agree()
