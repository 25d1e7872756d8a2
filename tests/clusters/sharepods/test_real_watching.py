"""The SharePods command on a real API server, also after an interruption."""

import time
from collections.abc import Callable, Iterator

import pytest
from django.utils import timezone

from apps.clusters.kube.client import Refused
from apps.clusters.sharepods.definition import definition
from apps.clusters.sharepods.watching import WatchedSharePods
from apps.clusters.watches import Watches
from apps.nodes.models import Node
from apps.scheduling.models import Claim
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Cast, Machine, assert_books_agree, give_plenty
from tests.clusters.control_plane import ControlPlane
from tests.clusters.real import Namespace, know

pytestmark = [pytest.mark.control_plane, pytest.mark.serial, pytest.mark.timeout(300)]
ASKED = {"gpu_request": "0.25", "gpu_limit": "0.5", "gpu_mem": str(1 << 30)}


class World(Namespace):
    """A namespace, a machine that its cluster calls kube-1, and the command's watches."""

    def __init__(self, plane: ControlPlane, cast: Cast) -> None:
        super().__init__(plane, cast)
        give_plenty(cast.acme)
        self.cast, self.machine = cast, Machine("gpu1", cast.pool, gpus=1)
        Node.objects.update(kubernetes_node="kube-1")
        self.watches = Watches(WatchedSharePods)

    def share(self, name: str) -> None:
        annotations = {f"kubeshare/{key}": value for key, value in ASKED.items()}
        spec = {"containers": [{"name": "cuda", "image": "cuda:12"}]}
        thing = {"metadata": {"name": name, "annotations": annotations}, "spec": spec}
        self.make("sharepods", {"apiVersion": "kubeshare.nthu/v1", "kind": "SharePod", **thing})

    def until(self, happens: Callable[[], bool], *, seconds: float = 60) -> None:
        """Run the command's check, rounds and the agent until the condition holds."""
        limit = time.monotonic() + seconds
        while not happens():
            assert time.monotonic() < limit, list(Claim.objects.values("name", "state", "reasons"))
            Node.objects.update(last_seen_at=timezone.now())
            self.watches.refresh()
            run_round(self.cast.pool)
            self.machine.obey()
            time.sleep(0.2)

    def is_served(self) -> bool:
        try:
            self.client.list(self.path("sharepods"))
        except Refused:
            return False
        return True

    def pods(self) -> list[str]:
        found = self.client.get(self.path("pods"))["items"]
        return sorted(item["metadata"]["name"] for item in found if "deletionTimestamp" not in item["metadata"])


@pytest.fixture
def world(real_plane: ControlPlane, real_cast: Cast) -> Iterator[World]:
    know(real_plane.client(), definition())
    made = World(real_plane, real_cast)
    yield made
    made.watches.stop()
    for kind in ("sharepods", "pods"):
        made.client.delete(made.path(kind))


def test_what_is_watched_becomes_pods_also_after_a_restart_of_the_api_server(
    world: World, real_plane: ControlPlane
) -> None:
    world.share("before")
    world.until(lambda: world.pods() == ["before"])
    real_plane.stop_one("kube-apiserver")
    real_plane.start_api_server()
    # The watch has the kinds of others a moment after its own.
    world.until(world.is_served)
    world.share("after")
    world.until(lambda: world.pods() == ["after", "before"])
    world.client.delete(world.path("sharepods", "before"))
    world.until(lambda: world.pods() == ["after"])
    world.until(lambda: sorted(Claim.objects.values_list("state", flat=True)) == ["active", "released"])
    assert_books_agree()
