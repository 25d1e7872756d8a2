"""GPUs chosen by the extender are promised in the ledger: no GPU goes to a pod and to a claim at once."""

import json
import typing
from typing import Any

import pytest
from django.db import OperationalError
from django.db.models import Model
from django.db.models.sql.compiler import SQLCompiler

from apps.clusters.extender import predicates
from apps.clusters.extender.choosing import ByLedger
from apps.clusters.extender.promises import Promises
from apps.clusters.importing import following
from apps.clusters.kube.client import Client, Refused
from apps.clusters.models import Cluster, PodHold
from apps.clusters.services import bindings, clusters, outside
from apps.nodes.models import Gpu, Node
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import GIB, Cast, Machine, ask, give_plenty
from tests.clusters.kubeconfigs import kubeconfig
from tests.clusters.paper import Paper, container, node, pod, request

Json = dict[str, Any]
NODES = [node("gpu1", 200, 192)]
INDEX = "tencent.com/predicate-gpu-idx-0"


@pytest.fixture
def machine(cast: Cast) -> Machine:
    return Machine("gpu1", cast.pool, gpus=2)


@pytest.fixture
def cluster(cast: Cast, machine: Machine) -> Cluster:
    give_plenty(cast.acme)
    made = clusters.connect(principal=SYSTEM, name="kube", pool=cast.pool, kubeconfig=kubeconfig())
    bindings.bind(principal=SYSTEM, cluster=made, namespace="ml", tenant=cast.acme)
    return made


class World:
    """Pending pods, and an extender that knew the ledger at the start."""

    def __init__(self, cluster: Cluster, *pods: Json) -> None:
        self.paper = Paper(NODES, list(pods))
        self.promises = Promises(cluster, self.paper.mirror)
        self.promises.refresh()
        choose = ByLedger(cluster, typing.cast(Client, self.paper), self.paper.mirror)
        self.extended = self.paper.extended(
            promises=self.promises, choose=choose if cluster.placement == "gpucloud" else None
        )

    def ask(self, name: str) -> Json:
        """Return the answer, with the pod's GPUs under `gpus`."""
        item = self.paper.pods[name]
        said: Json = json.loads(predicates.answer(self.extended, request(item, NODES)))
        return {**said, "gpus": item["metadata"]["annotations"].get(INDEX)}


def make_claim(cast: Cast, core: int, **facts: Any) -> Claim:
    """Create a claim and run a round."""
    claim = ask(cast, core_request=core, memory_mib=256, **facts)
    run_round(cast.pool)
    claim.refresh_from_db()
    return claim


def gpus_of(claim: Claim) -> list[int]:
    return list(claim.assignments.order_by("pk").values_list("gpu__index", flat=True))


def test_what_a_pod_was_chosen_for_is_not_given_to_a_claim(cast: Cast, cluster: Cluster) -> None:
    world = World(cluster, pod("p", container(60, 10)), pod("q", container(60, 10)))
    assert (world.ask("p")["gpus"], world.ask("q")["gpus"]) == ("0", "1")
    assert make_claim(cast, 50).state == "queued"
    assert make_claim(cast, 40).state == "assigned"


def test_without_its_promise_the_same_gpu_is_given_twice(cast: Cast, cluster: Cluster) -> None:
    """The control: the conflict that the test above guards against is real."""
    world = World(cluster, pod("p", container(60, 10)), pod("q", container(60, 10)))
    world.extended.promises = None
    assert (world.ask("p")["gpus"], world.ask("q")["gpus"]) == ("0", "1")
    assert make_claim(cast, 50).state == "assigned"


@pytest.mark.parametrize("placement", ["gpu-admission", "gpucloud"])
def test_what_a_claim_has_taken_meanwhile_is_not_chosen(cast: Cast, cluster: Cluster, placement: str) -> None:
    cluster.change(placement=placement)
    world = World(cluster, pod("p", container(60, 10)), pod("q", container(100)), pod("r", container(41, 1)))
    first = make_claim(cast, 50)
    assert world.ask("p")["gpus"] == str(1 - gpus_of(first)[0])
    assert world.ask("q")["gpus"] is None
    assert world.ask("r")["gpus"] == str(gpus_of(first)[0])


def test_a_pod_that_is_asked_about_again_is_promised_once(cast: Cast, cluster: Cluster) -> None:
    world = World(cluster, pod("p", container(60, 10)))
    world.ask("p")
    before = PodHold.objects.get()
    # A claim takes the rest of its GPU: the pod's promised part stays its own.
    make_claim(cast, 40)
    assert world.ask("p")["gpus"] == "0"
    assert PodHold.objects.get().gpu == before.gpu


def promise(cluster: Cluster, gpu: Gpu, *, memory_mib: int = 256) -> bool:
    """Promise a tenth of the GPU to a pod that nothing else is known of."""
    parts = {gpu.pk: (10, memory_mib)}
    return outside.promise(cluster=cluster, pod_uid="uid-p", parts=parts, known={}, shown=lambda *_: (0, 0))


@pytest.mark.parametrize(
    ("of", "change"),
    [
        (Gpu, {"core_used": 91}),
        (Gpu, {"core_outside": 91}),
        (Gpu, {"memory_used_mib": 24 * GIB - 255}),
        (Gpu, {"memory_outside_mib": 24 * GIB - 255}),
        (Gpu, {"cordoned": True}),
        (Gpu, {"unhealthy": "XID 79"}),
        (Gpu, {"present": False}),
        (Node, {"cordoned": True}),
        (Node, {"last_seen_at": "2026-01-01T00:00:00Z"}),
    ],
)
def test_a_gpu_that_has_not_as_much_or_is_closed_is_not_promised(
    cluster: Cluster, machine: Machine, monkeypatch: pytest.MonkeyPatch, of: type[Model], change: Json
) -> None:
    # It is asked for what it knew before, and that has not changed.
    monkeypatch.setattr(outside, "_promise_known", lambda **_: False)
    gpu = machine.gpu(0)
    assert promise(cluster, gpu)
    outside.drop(cluster=cluster, pod_uid="uid-p")
    of._default_manager.update(**change)
    before = Gpu.objects.get(pk=gpu.pk)
    assert not promise(cluster, gpu)
    after = Gpu.objects.get(pk=gpu.pk)
    assert (after.core_outside, after.memory_outside_mib) == (before.core_outside, before.memory_outside_mib)
    assert not PodHold.objects.exists()


def test_a_pod_that_is_chosen_for_elsewhere_gives_back_what_it_was_promised(cluster: Cluster, machine: Machine) -> None:
    first, second = machine.gpu(0), machine.gpu(1)
    assert promise(cluster, first)
    assert promise(cluster, second)
    assert list(PodHold.objects.values_list("gpu", flat=True)) == [second.pk]
    assert [machine.gpu(index).core_outside for index in (0, 1)] == [0, 10]


def test_a_promise_compiles_no_query(cast: Cast, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """kube-scheduler waits for each: compiling its dozen queries anew took most of the extender's time."""
    world = World(cluster, *(pod(name, container(10, 10)) for name in "pqr"))
    world.ask("p")
    compiled: list[str] = []
    before = SQLCompiler.as_sql

    def as_sql(self: SQLCompiler, *args: Any, **options: Any) -> Any:
        compiled.append(str(self.query.model))
        return before(self, *args, **options)

    monkeypatch.setattr(SQLCompiler, "as_sql", as_sql)
    assert world.ask("q")["gpus"] == "0"
    assert not compiled
    # The control: other code's queries are seen.
    assert PodHold.objects.count() == 2
    assert compiled


def test_by_the_ledger_a_promise_counts_once(cast: Cast, cluster: Cluster) -> None:
    cluster.change(placement="gpucloud")
    world = World(cluster, *(pod(name, container(50, 10)) for name in "pqrst"))
    found = [world.ask(name)["gpus"] for name in "pqpr"]
    assert found[0] == found[2]
    assert sorted(found[index] for index in (0, 1, 3)) in (["0", "0", "1"], ["0", "1", "1"])
    assert world.ask("s")["gpus"] is not None
    assert world.ask("t")["gpus"] is None


def test_a_promise_becomes_the_pods_claim(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    world = World(cluster, pod("p", container(60, 10)))
    world.ask("p")
    bound = world.paper.pods["p"]
    bound["spec"]["nodeName"] = "gpu1"
    following.follow(cluster=cluster, pod=bound, labels={})
    assert (machine.gpu().core_used, machine.gpu().core_outside) == (60, 0)
    assert not PodHold.objects.exists()
    # Its annotations name its part: to the pods of its cluster it is not free.
    world.promises.refresh()
    assert world.paper.mirror.beside_annotations("gpu1") == ()


def test_a_pod_that_could_not_be_told_is_promised_nothing(cluster: Cluster) -> None:
    world = World(cluster, pod("p", container(60, 10)))
    world.paper.refusals = [Refused(404, "NotFound", "no pod p")]
    assert world.ask("p")["gpus"] is None
    assert not PodHold.objects.exists()


def test_without_a_database_nothing_is_promised_but_on_machines_that_are_not_ours(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(cluster, pod("p", container(60, 10)), pod("q", container(60, 10)))

    def away(**_: Any) -> bool:
        raise OperationalError("the connection is lost")

    monkeypatch.setattr("apps.clusters.extender.promises.connection.close", lambda: None)
    monkeypatch.setattr(outside, "promise", away)
    assert "database" in world.ask("p")["Error"]
    assert world.ask("p")["gpus"] is None
    world.promises._ours = frozenset()
    assert world.ask("q")["gpus"] == "0"
