"""The condition of a ResourceClaim, as it is written."""

import json
import uuid
from collections.abc import Mapping
from typing import Any

from apps.clusters.dra import ledger, resizing
from apps.clusters.dra.resizing import Teller
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


def test_the_time_of_a_condition_is_that_of_its_status(cast: Cast) -> None:
    give(cast.acme, core_percent=100, memory_mib=100 * GIB)
    machine = Machine(NODE, cast.pool)
    cluster = clusters.connect(principal=SYSTEM, name="kube", pool=cast.pool, kubeconfig=kubeconfig())
    bindings.bind(principal=SYSTEM, cluster=cluster, tenant=cast.acme, namespace="vision")
    thing = things.claim("train", "vision")
    thing["metadata"]["uid"] = str(uuid.uuid4())
    results = [things.result(machine.gpu().uuid, NODE, core=30, memory_mib=2 * GIB)]
    thing["status"] = {"allocation": {"devices": {"results": results}}}
    row = ledger.follow(cluster=cluster, thing=thing, labels=dict)
    assert row is not None
    assert row.claim is not None
    api = Written(thing)
    teller = Teller(cluster, api)
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


def test_a_condition_of_another_driver_gives_no_time() -> None:
    condition = {"type": resizing.CONDITION, "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    thing = {"status": {"devices": [{"driver": "other.example.org", "conditions": [condition]}]}}
    assert resizing._since(thing, "True") > "2020"
    assert resizing._since(thing, "True") != condition["lastTransitionTime"]
