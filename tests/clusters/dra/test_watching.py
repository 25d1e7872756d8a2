"""The watch over ResourceClaims where objects or their number are not as usual."""

import threading
import time
import uuid
from typing import Any

import pytest

from apps.clusters.dra import batches, watching
from apps.clusters.dra.requests import CORE_KEY
from apps.clusters.dra.watching import CLAIMS, DeviceWatch
from apps.clusters.kube.reflector import Observation
from apps.clusters.models import DeviceClaim
from apps.clusters.services import bindings, clusters
from apps.nodes.models import Gpu
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from tests.cast import GIB, Cast, Machine, give
from tests.clusters.dra import things
from tests.clusters.kubeconfigs import kubeconfig

NODE = "gpu1"


@pytest.fixture
def watch(cast: Cast) -> DeviceWatch:
    cluster = clusters.connect(principal=SYSTEM, name="kube", pool=cast.pool, kubeconfig=kubeconfig())
    bindings.bind(principal=SYSTEM, cluster=cluster, tenant=cast.acme, namespace="vision")
    return DeviceWatch(cluster)


def made(name: str, **annotations: str) -> dict[str, Any]:
    thing = things.claim(name, "vision")
    thing["metadata"] |= {"uid": str(uuid.uuid4()), "annotations": annotations}
    return thing


def listed(watch: DeviceWatch, *found: dict[str, Any], version: int = 1) -> None:
    """Let the watch list these ResourceClaims; without a version, the API server knows no such kind."""
    watch.take(Observation(CLAIMS.name, found, whole=True, version=version))
    watch._apply_changes()


def test_one_that_cannot_be_stored_does_not_end_the_watch_over_others(cast: Cast, watch: DeviceWatch) -> None:
    give(cast.acme, core_percent=100, memory_mib=100 * GIB)
    gpu = Machine(NODE, cast.pool).gpu()
    # PostgreSQL stores no NUL; an API server does, where no webhook has seen it.
    wrong = made("wrong", **{"gpucloud.io/core": "6\x000"})
    results = [things.result(gpu.uuid, NODE, core=30, memory_mib=2 * GIB)]
    wrong["status"] = {"allocation": {"devices": {"results": results}}}
    right = made("right")
    for version in (1, 2):
        listed(watch, wrong, right, version=version)
    assert DeviceClaim.objects.filter(name="right", claim__isnull=False).exists()


def test_those_that_change_in_a_burst_are_placed_together(watch: DeviceWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def place(*, cluster: Any, things: Any) -> set[str]:
        sizes.append(len(things))
        return {thing["metadata"]["uid"] for thing in things}

    monkeypatch.setattr(batches, "place", place)

    def changed(number: int) -> None:
        watch.hear(Observation(CLAIMS.name, (made(f"c{number}"),), whole=False, version=number))

    changed(1)
    begun = time.monotonic()
    watch.step()
    assert (sizes, time.monotonic() - begun < watching.GATHER_SECONDS) == ([1], True)
    changed(2)
    for number in (3, 4):
        threading.Timer(0.02 * number, changed, (number,)).start()
    watch.step()
    assert sizes == [1, 3]


def test_problems_are_retried_in_turns(cast: Cast, watch: DeviceWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    every = [made(f"waits-{number}") for number in range(3)]
    listed(watch, *every)
    assert DeviceClaim.objects.exclude(problem="").count() == 3
    tried: list[str] = []
    monkeypatch.setattr(watch, "_follow", lambda thing: tried.append(thing["metadata"]["name"]))
    # As if each took all of the time.
    monkeypatch.setattr(watching, "PUBLISH_SECONDS", 0.0)
    for _ in range(5):
        watch.retry()
    assert tried == ["waits-0", "waits-1", "waits-2", "waits-0"]


def test_a_refused_resize_is_among_what_is_retried(cast: Cast, watch: DeviceWatch) -> None:
    give(cast.acme, core_percent=100, memory_mib=100 * GIB)
    machine = Machine(NODE, cast.pool)
    thing = made("train", **{CORE_KEY: "80"})
    results = [things.result(machine.gpu().uuid, NODE, core=30, memory_mib=2 * GIB)]
    thing["status"] = {"allocation": {"devices": {"results": results}}}
    Gpu.objects.update(core_outside=50)
    listed(watch, thing)
    machine.obey()
    listed(watch, thing, version=2)
    assert DeviceClaim.objects.get().refusal != ""
    Gpu.objects.update(core_outside=0)
    watch.retry()
    assert DeviceClaim.objects.get().refusal == ""
    assert Claim.objects.get().core_request == 80


def test_an_api_server_that_knows_no_such_kind_ends_nothing(cast: Cast, watch: DeviceWatch) -> None:
    give(cast.acme, core_percent=100, memory_mib=100 * GIB)
    listed(watch, made("train"))
    # The kind is new at first, and gone after a downgrade or behind a proxy without its backend: both answer 404.
    watch.client.find = lambda path: None  # type: ignore[method-assign]
    listed(watch, version=0)
    assert DeviceClaim.objects.live().filter(claim__state="allocating").exists()
    listed(watch, version=2)
    assert not DeviceClaim.objects.live().exists()
