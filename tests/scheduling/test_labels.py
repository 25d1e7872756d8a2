"""Labels, selectors and placement policies from the API's fields to the GPUs that a round chooses."""

from typing import Any

import pytest

from apps.nodes.models import Node
from apps.nodes.services.nodes import change_node
from apps.quotas.principals import SYSTEM
from apps.quotas.services.tenants import create_pool
from apps.scheduling.models import Assignment, Claim, Round
from apps.scheduling.services.claims.lifecycle import ImpossibleClaim, release_claim
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.fleet.devices import read_fleet
from apps.whatif.rounds import replay
from tests.cast import Cast, Machine, ask, give_plenty


@pytest.fixture
def machines(cast: Cast) -> list[Machine]:
    give_plenty(cast.acme, cast.globex)
    return [Machine(name, cast.pool) for name in ("gpu1", "gpu2")]


def small(cast: Cast, **values: Any) -> Claim:
    return ask(cast, core_request=20, memory_mib=512, **values)


def gpus(claim: Claim) -> set[str]:
    run_round(claim.pool)
    return set(Assignment.objects.filter(claim=claim).values_list("gpu__uuid", flat=True))


def reasons(claim: Claim) -> list[str]:
    claim.refresh_from_db()
    return [reason["code"] for reason in claim.reasons]


def test_claims_of_one_affinity_label_share_a_gpu(cast: Cast, machines: list[Machine]) -> None:
    first = gpus(small(cast, affinity="pair"))
    assert len(first) == 1
    assert gpus(small(cast, affinity="pair")) == first


def test_claims_of_one_anti_affinity_label_are_on_different_gpus(cast: Cast, machines: list[Machine]) -> None:
    chosen = [gpus(small(cast, anti_affinity="replica")) for _ in range(2)]
    assert chosen[0].isdisjoint(chosen[1])
    assert all(chosen)


def test_an_exclusion_label_has_its_gpu_to_itself_until_it_goes(cast: Cast, machines: list[Machine]) -> None:
    alone = small(cast, exclusion="quiet")
    kept = gpus(alone)
    others = [small(cast) for _ in range(6)]
    assert all(gpus(other) and gpus(other).isdisjoint(kept) for other in others)
    assert gpus(small(cast, exclusion="quiet")) == kept


def test_what_is_freed_lets_waiting_claims_in(cast: Cast) -> None:
    give_plenty(cast.acme)
    machine = Machine("gpu1", cast.pool, gpus=1)
    alone = small(cast, exclusion="quiet")
    assert gpus(alone)
    waits = small(cast)
    assert not gpus(waits)
    assert reasons(waits) == ["exclusion"]
    machine.obey()
    release_claim(principal=SYSTEM, claim=alone)
    machine.obey()
    assert gpus(waits)


def test_labels_of_one_tenant_mean_nothing_to_another(cast: Cast, machines: list[Machine]) -> None:
    mine = gpus(small(cast, anti_affinity="replica"))
    theirs = gpus(small(cast, tenant=cast.globex, anti_affinity="replica"))
    alone = gpus(small(cast))
    assert mine == theirs == alone


def test_a_selector_finds_nodes_by_the_labels_that_operators_give(cast: Cast, machines: list[Machine]) -> None:
    with pytest.raises(ImpossibleClaim, match="without the labels zone=b"):
        small(cast, node_selector={"zone": "b"})
    change_node(principal=SYSTEM, node=Node.objects.get(name="gpu2"), labels={"zone": "b", "net": "ib"})
    claim = small(cast, node_selector={"zone": "b"})
    assert gpus(claim)
    assert Assignment.objects.get(claim=claim).gpu.node.name == "gpu2"


def test_a_selector_finds_a_node_by_its_name(cast: Cast, machines: list[Machine]) -> None:
    # An operator's label of that name has no effect.
    change_node(principal=SYSTEM, node=Node.objects.get(name="gpu1"), labels={"gpucloud.io/node": "gpu2"})
    for name in ("gpu2", "gpu1"):
        claim = small(cast, node_selector={"gpucloud.io/node": name})
        assert gpus(claim)
        assert Assignment.objects.get(claim=claim).gpu.node.name == name
    with pytest.raises(ImpossibleClaim, match=r"without the labels gpucloud\.io/node=gpu9"):
        small(cast, node_selector={"gpucloud.io/node": "gpu9"})


def test_a_pool_places_by_its_policy(cast: Cast, machines: list[Machine]) -> None:
    cast.pool.change(placement_policy="spread")
    assert len({uuid for _ in range(4) for uuid in gpus(small(cast))}) > 1
    cast.pool.change(placement_policy="binpack")
    last = gpus(small(cast))
    assert gpus(small(cast)) == last


def test_chance_draws_for_each_claim_anew(cast: Cast, machines: list[Machine]) -> None:
    cast.pool.change(placement_policy="random")
    # All on one GPU by chance: once in thousands of runs with two GPUs.
    assert len({uuid for _ in range(14) for uuid in gpus(ask(cast, core_request=5, memory_mib=64))}) > 1
    compared = [one for record in Round.objects.filter(pool=cast.pool) for one in replay(record)]
    assert len(compared) == 14
    assert all(one.then == one.now for one in compared)


def test_the_api_takes_and_shows_labels(cast: Cast, machines: list[Machine]) -> None:
    api = cast.olga
    body = {
        "tenant": "acme", "core_request": 20, "memory_mib": 512, "affinity": "pair", "anti_affinity": "replica",
        "exclusion": "quiet", "node_selector": {"zone": "b"},
    }  # fmt: skip
    assert api.patch("nodes/gpu1/", {"labels": {"zone": "b"}}).body["labels"] == {"zone": "b"}
    shown = api.post("claims/?dry_run=true", body)
    assert shown.status == 200, shown.raw
    assert shown.body["state"] == "assigned"
    made = api.post("claims/", body).body
    assert {name: made[name] for name in body} == body
    wrong = api.post("claims/", {**body, "affinity": "not a label"})
    assert wrong.status == 400
    assert wrong.body["errors"]["affinity"][0].startswith("Letters, digits, dots")
    assert api.patch("pools/default/", {"placement_policy": "fgd"}).body["placement_policy"] == "fgd"
    assert api.patch("pools/default/", {"placement_policy": "best"}).status == 400


def test_labels_count_where_the_gpu_is_whatever_pool_their_claim_is_of(cast: Cast, machines: list[Machine]) -> None:
    alone = small(cast, exclusion="quiet")
    (uuid,) = gpus(alone)
    other = create_pool(principal=SYSTEM, name="other")
    # As a server of the version before could leave it.
    Node.objects.filter(gpus__uuid=uuid).update(pool=other)
    assert [gpu.uuid for gpu in read_fleet(other) if gpu.labels] == [uuid]
    assert not [gpu.uuid for gpu in read_fleet(cast.pool) if gpu.labels]
