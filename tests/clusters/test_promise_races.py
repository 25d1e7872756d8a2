"""Races for what is promised to pods, on PostgreSQL with a session per racer; each beside a control."""

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F, Sum
from django.utils import timezone

from apps.clusters.importing import following
from apps.clusters.models import Cluster, PodClaim, PodHold
from apps.clusters.services import bindings, clusters, outside
from apps.nodes.models import Gpu
from apps.quotas.principals import SYSTEM
from apps.reservations.lifecycle import create_reservation
from apps.scheduling.models import Claim
from tests.cast import Cast, Machine, assert_books_agree, give, give_plenty, used
from tests.clusters.kubeconfigs import kubeconfig
from tests.clusters.test_recording import pod
from tests.processes import eventually
from tests.racing import race

pytestmark = pytest.mark.django_db(transaction=True)
RACERS, ROOM, CORE = 64, 10, 10
# Other processes test in databases of their own on the same server; who waits for a row has locked its table.
WAITING = """
SELECT count(*) FROM pg_locks waits WHERE NOT granted AND EXISTS (
    SELECT FROM pg_locks has JOIN pg_database here ON here.oid = has.database
    WHERE has.pid = waits.pid AND here.datname = current_database()
)
"""


@pytest.fixture
def machine(real_cast: Cast) -> Machine:
    return Machine("gpu1", real_cast.pool, gpus=1)


@pytest.fixture
def cluster(real_cast: Cast, machine: Machine) -> Cluster:
    made = clusters.connect(principal=SYSTEM, name="kube", pool=real_cast.pool, kubeconfig=kubeconfig())
    bindings.bind(principal=SYSTEM, cluster=made, namespace="ml", tenant=real_cast.acme)
    return made


def promise(cluster: Cluster, gpu: int, uid: str) -> bool:
    """Promise the pod a tenth of the GPU; all pods are known, and none is annotated yet."""
    parts = {gpu: (CORE, 256)}
    return outside.promise(cluster=cluster, pod_uid=uid, parts=parts, known={}, shown=lambda *_: (0, 0))


def promise_all(cluster: Cluster, gpu: int) -> int:
    """Promise parts of the GPU to many pods at once; return how many were promised theirs."""
    made = race([partial(promise, cluster, gpu, f"uid-{number}") for number in range(RACERS)])
    assert set(map(type, made)) == {bool}, made
    return sum(made)


def promised(gpu: int) -> tuple[int, int]:
    """Return the percent that the GPU says, and the sum of the pods' parts."""
    total = PodHold.objects.filter(gpu=gpu).aggregate(core=Sum("core", default=0))["core"]
    return Gpu.objects.get(pk=gpu).core_outside, total


def test_sixty_four_pods_at_a_gpu_with_room_for_ten_are_promised_exactly_ten_parts(
    cluster: Cluster, machine: Machine
) -> None:
    gpu = machine.gpu().pk
    assert promise_all(cluster, gpu) == ROOM
    assert promised(gpu) == (ROOM * CORE, ROOM * CORE)


def naive(cluster: Cluster, pod_uid: str, parts: outside.Parts) -> bool:
    """Read, check, write: unlike `outside`."""
    [(key, (core, memory_mib))] = parts.items()
    gpu = Gpu.objects.get(pk=key)
    if gpu.core_free < core:
        return False
    PodHold.objects.create(cluster=cluster, pod_uid=pod_uid, gpu=gpu, core=core, memory_mib=memory_mib)
    Gpu.objects.filter(pk=key).update(core_outside=F("core_outside") + core)
    return True


def test_control_a_gpu_is_promised_twice_by_who_reads_and_then_writes(
    cluster: Cluster, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "_promise_free", naive)
    assert promise_all(cluster, machine.gpu().pk) > ROOM


def promise_while_booking(cast: Cast, cluster: Cluster, gpu: int) -> list[Any]:
    """Promise a part of a GPU while a booking of all of it holds the GPU's lock; return the answers."""
    give_plenty(cast.acme)
    answers: list[Any] = []
    pod = threading.Thread(target=lambda: answers.extend(race([partial(promise, cluster, gpu, "uid-p")])))
    start = timezone.now() + timedelta(hours=1)
    window = {"start_at": start, "end_at": start + timedelta(hours=1)}
    facts: dict[str, Any] = {"name": "r", "core_request": 100, "memory_mib": 1, "grace_seconds": None}
    with transaction.atomic():
        create_reservation(principal=SYSTEM, tenant=cast.acme, pool=cast.pool, **window, **facts)
        pod.start()
        assert eventually(lambda: bool(waiting_sessions()), seconds=20)
    pod.join(20)
    return answers


def waiting_sessions() -> int:
    """Return how many sessions wait for a lock of another one."""
    with connection.cursor() as cursor:
        cursor.execute(WAITING)
        return int(cursor.fetchone()[0])


def test_a_booking_that_a_promise_waited_for_is_seen(real_cast: Cast, cluster: Cluster, machine: Machine) -> None:
    gpu = machine.gpu().pk
    assert promise_while_booking(real_cast, cluster, gpu) == [False]
    assert promised(gpu) == (0, 0)


def test_control_without_a_look_afterwards_the_booked_gpu_is_promised(
    real_cast: Cast, cluster: Cluster, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = machine.gpu().pk
    monkeypatch.setattr(outside, "_open_on", lambda *_: [(gpu,)])
    assert promise_while_booking(real_cast, cluster, gpu) == [True]
    assert promised(gpu) == (CORE, CORE)


def record(cluster: Cluster, names: list[str]) -> None:
    following.follow_many(cluster=cluster, found=[(pod(name, CORE), {}) for name in names])


def test_promises_and_batches_of_one_gpu_at_once_add_up(real_cast: Cast, cluster: Cluster, machine: Machine) -> None:
    """Workers turn promises into claims while others are promised: no part is lost, none counts twice."""
    give(real_cast.acme, core_percent=50, memory_mib=None)
    gpu = machine.gpu().pk
    first, second = [f"a{number}" for number in range(5)], [f"b{number}" for number in range(5)]
    for name in first:
        assert promise(cluster, gpu, f"uid-{name}")
    racers: list[Callable[[], Any]] = [partial(promise, cluster, gpu, f"uid-{name}") for name in second]
    racers += [partial(record, cluster, first[:2]), partial(record, cluster, first[2:])]
    assert race(racers) == [*[True] * 5, None, None]
    row = Gpu.objects.get(pk=gpu)
    assert (row.core_used, row.core_outside) == (50, 50)
    assert promised(gpu) == (50, 50)
    # The quota has no room for the others: each is refused, and keeps its part of the GPU.
    race([partial(record, cluster, second[:3]), partial(record, cluster, second[3:])])
    assert used(real_cast.acme)["core_percent"] == 50
    assert Claim.objects.count() == PodClaim.objects.filter(claim__isnull=False).count() == 5
    assert promised(gpu) == (50, 50)
    assert_books_agree()
