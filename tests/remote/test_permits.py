"""The permission to use claims from other machines, as their nodes are told: who changes it, and when they hear."""

import pytest

from apps.nodes.models import Node
from apps.quotas.models import Pool, Tenant
from apps.quotas.principals import SYSTEM
from apps.quotas.services.tenants import change_tenant
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.claims.spec import ClaimChanges
from tests.cast import Cast, Machine, cast, give_plenty, placed

__all__ = ["cast"]

ENDPOINT = {"host": "10.0.0.7", "port": 7443, "fingerprint": "f" * 64, "component": "lupine", "build": "0123456789ab"}


@pytest.fixture
def machine(cast: Cast) -> Machine:
    """Create a node that clients can reach, in a pool and for a tenant that may have remote shares."""
    give_plenty(cast.acme, cast.globex)
    machine = Machine("gpu1", cast.pool).stay_online()
    Node.objects.update(remote=ENDPOINT)
    Pool.objects.filter(pk=cast.pool.pk).update(remote=True)
    Tenant.objects.filter(pk=cast.acme.pk).update(remote=True)
    cast.pool.refresh_from_db()
    cast.acme.refresh_from_db()
    return machine


def told(machine: Machine) -> list[str]:
    return [one.remote_refused for one in desired_state(machine.node).assignments]


def frame(machine: Machine) -> int:
    return Node.objects.get(pk=machine.node.pk).frame


def test_a_pool_that_is_switched_off_tells_its_nodes(cast: Cast, machine: Machine) -> None:
    placed(cast, machine)
    assert told(machine) == [""]
    before = frame(machine)
    change_pool(principal=SYSTEM, pool=cast.pool, remote=False)
    assert told(machine) == ["the claim's pool does not allow remote shares any more"]
    assert frame(machine) > before


def test_a_tenant_that_is_switched_off_tells_the_nodes_of_its_claims(cast: Cast, machine: Machine) -> None:
    other = Machine("gpu2", cast.pool).stay_online()
    Node.objects.update(remote=ENDPOINT)
    placed(cast, machine, node_selector={"gpucloud.io/node": "gpu1"})
    before = frame(machine), frame(other)
    change_tenant(principal=SYSTEM, tenant=cast.acme, remote=False)
    assert told(machine) == ["the claim's tenant may not have remote shares any more"]
    assert (frame(machine) > before[0], frame(other) > before[1]) == (True, False)
    change_tenant(principal=SYSTEM, tenant=cast.acme, remote=True)
    assert told(machine) == [""]
    before = frame(machine), frame(other)
    change_tenant(principal=SYSTEM, tenant=cast.acme, name="Another name")
    assert (frame(machine), frame(other)) == before


def test_an_owner_that_refuses_it_tells_the_node(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    before = frame(machine)
    resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(remote="never"))
    assert told(machine) == ["the claim's field `remote` is never"]
    assert frame(machine) > before


def test_a_node_that_takes_no_clients_is_told_nothing(cast: Cast, machine: Machine) -> None:
    """Most have none, and what they are sent must not grow."""
    placed(cast, machine, remote="never")
    Node.objects.update(remote=None)
    assert told(machine) == [""]
