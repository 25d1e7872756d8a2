"""Claims with hard isolation on several GPUs and nodes in MIG mode, and beside pools that have none."""

from typing import Any

import pytest

from apps.quotas.principals import SYSTEM
from apps.quotas.services.tenants import create_pool
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Cast, Machine, assert_books_agree, give_plenty
from tests.scheduling.divided import MEMORY_MIB, on_the_wire


def divided(cast: Cast, name: str, **facts: Any) -> Machine:
    """Return a node of two GPUs, both in MIG mode."""
    mig = {0: on_the_wire(), 1: on_the_wire()}
    return Machine(name, cast.pool, gpus=2, memory_mib=MEMORY_MIB["H200"], model="NVIDIA H200", mig=mig, **facts)


def hard(cast: Cast, profile: str) -> Claim:
    answer = cast.max.post("claims/", {"tenant": "acme", "profile": profile})
    assert answer.status == 201, answer.body
    return Claim.objects.get(uid=answer.body["uid"])


@pytest.mark.parametrize(("profile", "most"), [("7g.141gb", 4), ("4g.71gb", 4), ("3g.71gb", 8), ("2g.35gb", 12)])
def test_every_place_of_two_nodes_is_given_once_and_one_more_waits(cast: Cast, profile: str, most: int) -> None:
    give_plenty(cast.acme)
    nodes = [divided(cast, "mig1"), divided(cast, "mig2")]
    claims = [hard(cast, profile) for _ in range(most + 1)]
    run_round(cast.pool)
    places = [(item.gpu_id, item.mig_start) for item in Assignment.objects.all()]
    assert len(set(places)) == len(places) == most
    assert {gpu for gpu, _ in places} == {node.gpu(index).pk for node in nodes for index in (0, 1)}
    [waits] = Claim.objects.filter(pk__in=[one.pk for one in claims], assignments__isnull=True)
    assert [reason["code"] for reason in waits.reasons] == ["mig-place"]
    assert_books_agree()


def test_a_cordoned_gpu_takes_no_instance_and_a_pool_without_mig_no_such_claim(cast: Cast) -> None:
    give_plenty(cast.acme)
    node = divided(cast, "mig1")
    create_pool(principal=SYSTEM, name="plain")
    answer = cast.max.post("claims/", {"tenant": "acme", "pool": "plain", "profile": "1g.18gb"})
    assert (answer.status, answer.code) == (422, "no-mig-gpu")
    assert cast.olga.patch(f"gpus/{node.gpu(0).uuid}/", {"cordoned": True}).status == 200
    claims = [hard(cast, "7g.141gb") for _ in range(2)]
    run_round(cast.pool)
    assert [item.gpu_id for item in Assignment.objects.filter(claim__in=claims)] == [node.gpu(1).pk]
    [waits] = Claim.objects.filter(assignments__isnull=True)
    assert {reason["code"] for reason in waits.reasons} == {"mig-place", "node-unavailable"}
