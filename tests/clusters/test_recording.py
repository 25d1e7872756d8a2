"""Many pods at once: skipped events, one newest state for each pod, one transaction for many of them."""

import threading
import time
import uuid
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.clusters.importing import batches, following
from apps.clusters.models import Cluster, PodClaim, PodHold
from apps.clusters.pod_queue import PodQueue, Work
from apps.clusters.recording import BATCH, Recorder
from apps.clusters.services import bindings, clusters, outside, resizing
from apps.quotas.models import AuditEvent, LedgerEntry
from apps.quotas.principals import SYSTEM
from apps.quotas.services import charging
from apps.scheduling.models import Claim
from tests.cast import Cast, Machine, assert_books_agree, give, give_plenty, used
from tests.clusters import paper
from tests.clusters.kubeconfigs import kubeconfig
from tests.clusters.test_holding import cluster, machine, running
from tests.processes import eventually

__all__ = ["cluster", "machine"]
Json = dict[str, Any]


def pod(name: str, core: int = 2, **more: Any) -> Json:
    return running(name, paper.container(core, 1), **more)


def uid(pod: Json) -> str:
    return str(pod["metadata"]["uid"])


@pytest.fixture
def queue() -> PodQueue:
    return PodQueue()


@pytest.fixture
def recorder(cluster: Cluster, queue: PodQueue) -> Recorder:
    """Return a recorder without workers: `work_off` does their work."""
    return Recorder(cluster, queue, labels=lambda _: {})


def put(queue: PodQueue, *pods: Json) -> None:
    for one in pods:
        queue.put(uid(one), one)


def count_queries(recorder: Recorder) -> int:
    with CaptureQueriesContext(connection) as asked:
        assert recorder.work_off()
    return len(asked)


def test_an_event_that_changes_only_the_status_costs_nothing(
    cast: Cast, machine: Machine, queue: PodQueue, recorder: Recorder
) -> None:
    give_plenty(cast.acme)
    first = pod("train")
    put(queue, first)
    assert count_queries(recorder) > 0
    later = {**first, "status": {"phase": "Running", "conditions": [{"type": "Ready"}]}}
    told = {**later, "metadata": {**first["metadata"], "annotations": {**first["metadata"]["annotations"]}}}
    told["metadata"]["annotations"][resizing.STATUS] = "{}"
    put(queue, later, told)
    assert count_queries(recorder) == 0


def test_an_annotation_is_news(cast: Cast, machine: Machine, queue: PodQueue, recorder: Recorder) -> None:
    give_plenty(cast.acme)
    one = pod("train", 10)
    put(queue, one)
    recorder.work_off()
    annotations = {**one["metadata"]["annotations"], resizing.CORE: "30"}
    put(queue, {**one, "metadata": {**one["metadata"], "annotations": annotations}})
    recorder.work_off()
    assert Claim.objects.get().core_request == 30
    assert_books_agree()


def test_the_newest_state_of_a_pod_is_recorded_once(queue: PodQueue) -> None:
    states = [pod("p", core) for core in (1, 2, 3)]
    for number, state in enumerate(states):
        state["metadata"]["labels"] = {"number": str(number)}
    put(queue, *states)
    assert queue.take(9) == {"uid-p": states[-1]}


def test_a_pod_that_is_worked_on_is_given_to_no_other_worker(queue: PodQueue) -> None:
    first, second = pod("p"), pod("p", gpus="1")
    put(queue, first)
    work = queue.take(9)
    put(queue, second)
    assert queue.take(9) == {}
    queue.done(work)
    assert queue.take(9) == {"uid-p": second}


def test_a_single_pod_is_given_at_once_and_those_after_it_together(queue: PodQueue) -> None:
    put(queue, pod("a"))
    begun = time.monotonic()
    assert len(queue.take(3, apart=5.0)) == 1
    later = threading.Timer(0.1, put, (queue, pod("c"), pod("d"), pod("e")))
    put(queue, pod("b"))
    later.start()
    # As many as fit wait for no others.
    assert list(queue.take(3, apart=5.0)) == ["uid-b", "uid-c", "uid-d"]
    assert time.monotonic() - begun < 5.0
    # The one that is left waits for others, and no longer than it must.
    assert list(queue.take(3, apart=0.2)) == ["uid-e"]
    assert time.monotonic() - begun > 0.3
    later.join()


def test_the_next_event_of_a_pod_that_failed_is_not_skipped(queue: PodQueue) -> None:
    put(queue, pod("p"))
    work = queue.take(9)
    queue.done(work, failed=work)
    put(queue, pod("p"))
    assert set(queue.take(9)) == {"uid-p"}


def test_fifty_pods_cost_a_fraction_of_the_statements_of_fifty_times_one(
    cast: Cast, machine: Machine, queue: PodQueue, recorder: Recorder, cluster: Cluster
) -> None:
    give_plenty(cast.acme)
    with CaptureQueriesContext(connection) as alone:
        following.follow(cluster=cluster, pod=pod("alone"), labels={})
    put(queue, *(pod(f"p{number}", gpus=str(number % 4)) for number in range(BATCH)))
    together = count_queries(recorder)
    assert together * 3 < len(alone) * BATCH, (together, len(alone))
    assert PodClaim.objects.filter(claim__isnull=False).count() == BATCH + 1
    assert used(cast.acme) == {"core_percent": 2 * (BATCH + 1), "memory_mib": 256 * (BATCH + 1)}
    assert AuditEvent.objects.filter(action="claim.create").count() == BATCH + 1
    assert_books_agree()


def test_what_is_recorded_together_is_recorded_as_alone(
    cast: Cast, machine: Machine, queue: PodQueue, recorder: Recorder, cluster: Cluster
) -> None:
    give_plenty(cast.acme)

    def both(name: str) -> Json:
        return running(name, paper.container(10, 4, name="a"), paper.container(100, name="b"), gpus="0")

    alone, together = both("alone"), both("together")
    for one, gpu in ((alone, "2"), (together, "3")):
        one["metadata"]["annotations"]["tencent.com/predicate-gpu-idx-1"] = gpu
    following.follow(cluster=cluster, pod=alone, labels={})
    put(queue, together)
    recorder.work_off()
    columns = ["container", "container_index", "node", "node_name", "core", "memory_mib", "problem"]
    of_claim = ["gpu_count", "core_request", "core_limit", "memory_mib", "state", "created_by", "user", "priority"]
    columns += [f"claim__{name}" for name in of_claim]
    found = [
        list(PodClaim.objects.filter(pod=name).order_by("container_index").values_list(*columns))
        for name in ("alone", "together")
    ]
    assert found[0] == found[1]
    assert len(found[0]) == 2
    assert [state for state, _ in Claim.objects.get(container__pod="together", gpu_count=1, core_request=10).timeline] \
        == ["pending", "assigned"]  # fmt: skip
    assert_books_agree()


def test_one_that_the_quota_refuses_holds_up_no_other(
    cast: Cast, machine: Machine, queue: PodQueue, recorder: Recorder
) -> None:
    give(cast.acme, core_percent=50, memory_mib=2560)
    put(queue, pod("a", 30), pod("big", 40, gpus="1"), pod("b", 20))
    recorder.work_off()
    held = dict(PodClaim.objects.values_list("pod", "problem"))
    assert (held["a"], held["b"]) == ("", "")
    assert "quota" in held["big"]
    assert machine.gpu(1).core_outside == 40
    assert used(cast.acme)["core_percent"] == 50
    assert_books_agree()


def test_one_whose_gpu_is_full_holds_up_no_other(
    cast: Cast, machine: Machine, queue: PodQueue, recorder: Recorder
) -> None:
    give_plenty(cast.acme)
    put(queue, pod("a", 60), pod("b", 60), pod("c", 60, gpus="1"))
    recorder.work_off()
    held = dict(PodClaim.objects.values_list("pod", "problem"))
    assert (held["a"], held["c"]) == ("", "")
    assert "no room" in held["b"]
    assert used(cast.acme)["core_percent"] == 120
    assert_books_agree()


def test_promises_become_claims(
    cast: Cast, cluster: Cluster, machine: Machine, recorder: Recorder, queue: PodQueue
) -> None:
    give_plenty(cast.acme)
    outside.keep(cluster=cluster, pod_uid="uid-p", parts={machine.gpu(0).pk: (60, 256)})
    assert machine.gpu(0).core_outside == 60
    put(queue, pod("p", 60))
    recorder.work_off()
    assert (machine.gpu(0).core_used, machine.gpu(0).core_outside) == (60, 0)
    assert not PodHold.objects.exists()


def test_a_malformed_pod_holds_up_no_other(
    cast: Cast, machine: Machine, queue: PodQueue, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_plenty(cast.acme)
    odd = pod("odd")
    odd["spec"]["containers"] = "none"
    put(queue, odd, pod("good"))
    recorder.work_off()
    assert [row.pod for row in PodClaim.objects.filter(claim__isnull=False)] == ["good"]


def test_a_failing_batch_is_recorded_one_by_one(
    cast: Cast, machine: Machine, queue: PodQueue, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_plenty(cast.acme)
    monkeypatch.setattr(batches, "_record", lambda *_: 1 / 0)
    put(queue, pod("a"), pod("b"))
    recorder.work_off()
    assert PodClaim.objects.filter(claim__isnull=False).count() == 2


def test_a_list_of_recorded_pods_costs_a_few_statements(
    cast: Cast, machine: Machine, queue: PodQueue, recorder: Recorder, cluster: Cluster
) -> None:
    """After a restart everything is listed, and nothing has changed."""
    give_plenty(cast.acme)
    there = [pod(f"p{number}", gpus=str(number % 4)) for number in range(BATCH)]
    put(queue, *there)
    recorder.work_off()
    again = PodQueue()
    put(again, *there)
    assert count_queries(Recorder(cluster, again, labels=lambda _: {})) <= 6


def test_workers_gather_the_pods_of_a_burst(
    cluster: Cluster, queue: PodQueue, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def work(taken: Work) -> None:
        sizes.append(len(taken))
        queue.done(taken)

    monkeypatch.setattr(recorder, "_work", work)
    recorder.start()
    for number in range(40):
        put(queue, pod(f"p{number}"))
        time.sleep(0.005)
    assert eventually(lambda: sum(sizes) == 40, seconds=20)
    recorder.stop()
    recorder.join(5.0)
    # The first one does not wait.
    assert (sizes[0], len(sizes) <= 10) == (1, True), sizes


@pytest.mark.serial
def test_workers_record_a_burst_of_several_tenants_and_its_end(real_cast: Cast) -> None:
    Machine("gpu1", real_cast.pool, gpus=8)
    give_plenty(real_cast.acme, real_cast.globex)
    made = clusters.connect(principal=SYSTEM, name="kube", pool=real_cast.pool, kubeconfig=kubeconfig())
    for namespace, tenant in (("ml", real_cast.acme), ("other", real_cast.globex)):
        bindings.bind(principal=SYSTEM, cluster=made, namespace=namespace, tenant=tenant)
    queue = PodQueue()
    recorder = Recorder(made, queue, labels=lambda _: {})
    recorder.start()
    there = [pod(f"p{number}", gpus=str(number % 8)) for number in range(200)]
    for number, one in enumerate(there):
        one["metadata"]["namespace"] = "ml" if number % 3 else "other"
    halves = [threading.Thread(target=put, args=(queue, *there[half::2])) for half in (0, 1)]
    for half in halves:
        half.start()
    live = PodClaim.objects.live().filter(claim__isnull=False)
    assert eventually(lambda: live.count() == 200, seconds=60)
    assert_books_agree()
    for one in there[:100]:
        queue.put_end(uid(one))
    assert eventually(lambda: live.count() == 100, seconds=60)
    recorder.stop()
    recorder.join(30)
    recorder.raise_failure()
    assert_books_agree()


def test_many_claims_are_charged_at_once_or_not_at_all_each_with_its_entry(cast: Cast) -> None:
    give(cast.acme, core_percent=60, memory_mib=None)
    uids = [uuid.uuid4() for _ in range(3)]

    def charge(*cores: int) -> bool:
        amounts = {one: {"core_percent": core, "memory_mib": 256} for one, core in zip(uids, cores, strict=True)}
        return charging.charge_many(principal=SYSTEM, tenant=cast.acme, pool=cast.pool, amounts=amounts)

    assert not charge(10, 20, 31)
    assert used(cast.acme) == {"core_percent": 0, "memory_mib": 0}
    assert not LedgerEntry.objects.filter(claim_uid__in=uids).exists()
    assert charge(10, 20, 30)
    assert used(cast.acme) == {"core_percent": 60, "memory_mib": 768}
    entries = LedgerEntry.objects.filter(resource="core_percent", claim_uid__in=uids).order_by("pk")
    assert list(entries.values_list("claim_uid", "amount", "used", "hard")) == [
        (uids[0], 10, 10, 60), (uids[1], 20, 30, 60), (uids[2], 30, 60, 60),
    ]  # fmt: skip
    assert not charge(1, 0, 0)


def test_a_tenant_without_a_quota_is_not_charged_at_once(cast: Cast) -> None:
    amounts = {uuid.uuid4(): {"core_percent": 10, "memory_mib": 256}}
    assert not charging.charge_many(principal=SYSTEM, tenant=cast.acme, pool=cast.pool, amounts=amounts)
