"""The condition of a ResourceClaim, as it is written."""

import json
import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.clusters.dra import ledger, resizing
from apps.clusters.dra.resizing import Teller
from apps.clusters.models import Cluster, DeviceClaim
from apps.clusters.services import bindings, clusters
from apps.quotas.principals import SYSTEM
from tests.cast import GIB, Cast, Machine, give
from tests.clusters.dra import things
from tests.clusters.kubeconfigs import kubeconfig

NODE = "gpu1"


class Written:
    """An API server that stores what is applied to one ResourceClaim."""

    def __init__(self, thing: dict[str, Any]) -> None:
        self.thing = thing

    def patch(self, path: str, body: Mapping[str, Any], *, content_type: str) -> bytes:
        self.thing["status"]["devices"] = json.loads(json.dumps(body["status"]["devices"]))
        return b"{}"

    def condition(self) -> dict[str, str]:
        """Return our condition."""
        [entry] = self.thing["status"]["devices"]
        return dict(entry["conditions"][0])


def connected(cast: Cast) -> Cluster:
    cluster = clusters.connect(principal=SYSTEM, name="kube", pool=cast.pool, kubeconfig=kubeconfig())
    bindings.bind(principal=SYSTEM, cluster=cluster, tenant=cast.acme, namespace="vision")
    return cluster


def placed(cluster: Cluster, machine: Machine, name: str, *, core: int) -> tuple[DeviceClaim, dict[str, Any]]:
    """Return a ResourceClaim that is allocated on the machine's first GPU, and its row."""
    thing = things.claim(name, "vision")
    thing["metadata"]["uid"] = str(uuid.uuid4())
    results = [things.result(machine.gpu().uuid, NODE, core=core, memory_mib=2 * GIB)]
    thing["status"] = {"allocation": {"devices": {"results": results}}}
    row = ledger.follow(cluster=cluster, thing=thing, labels=dict)
    assert row is not None
    assert row.claim is not None
    return row, thing


def test_the_time_of_a_condition_is_that_of_its_status(cast: Cast) -> None:
    give(cast.acme, core_percent=100, memory_mib=100 * GIB)
    machine = Machine(NODE, cast.pool)
    row, thing = placed(connected(cast), machine, "train", core=30)
    api = Written(thing)
    teller = Teller(row.cluster, api)
    before = "2020-01-01T00:00:00Z"

    def tell() -> str:
        """Write the status where the one that is shown is old; return its time."""
        for entry in thing["status"].get("devices", ()):
            entry["conditions"][0]["lastTransitionTime"] = before
        assert teller.tell({row.uid: thing}) == 1
        return api.condition()["lastTransitionTime"]

    machine.obey()
    assert tell() > before
    assert api.condition()["status"] == "True"
    # The next two are both False, for reasons of their own.
    row.refresh_from_db()
    row.change(told="pending", refusal="no room")
    assert tell() > before
    assert api.condition()["reason"] == "Refused"
    row.change(told="pending", refusal="still no room")
    assert tell() == before
    assert api.condition()["message"] == "still no room"


@pytest.mark.parametrize("count", [1, 5])
def test_many_that_are_not_in_force_yet_cost_two_queries(cast: Cast, count: int) -> None:
    give(cast.acme, core_percent=100, memory_mib=100 * GIB)
    cluster, machine = connected(cast), Machine(NODE, cast.pool)
    both = [placed(cluster, machine, f"c{number}", core=10) for number in range(count)]
    teller = Teller(cluster, Written({}))
    with CaptureQueriesContext(connection) as asked:
        assert teller.tell({row.uid: thing for row, thing in both}) == 0
    assert len(asked) == 2


def test_as_many_as_are_read_at_once_are_told_and_the_others_come_next(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resizing, "MOST_TOLD", 2)
    give(cast.acme, core_percent=100, memory_mib=100 * GIB)
    cluster, machine = connected(cast), Machine(NODE, cast.pool)
    both = [placed(cluster, machine, f"c{number}", core=10) for number in range(3)]
    machine.obey()
    there = {row.uid: thing for row, thing in both}
    teller = Teller(cluster, Written(both[0][1]))
    assert [teller.tell(there) for _ in range(4)] == [2, 1, 0, 0]


def test_a_condition_of_another_driver_gives_no_time() -> None:
    condition = {"type": resizing.CONDITION, "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    thing = {"status": {"devices": [{"driver": "other.example.org", "conditions": [condition]}]}}
    assert resizing._since(thing, "True") > "2020"
    assert resizing._since(thing, "True") != condition["lastTransitionTime"]
