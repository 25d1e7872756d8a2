"""Tickets of remote shares: who gets one, what operators must allow first, and what the node is told."""

import hashlib
from typing import Any

import pytest

from apps.nodes.models import Node
from apps.nodes.models.node import hint_group
from apps.quotas.models import AuditEvent, Pool, Tenant
from apps.scheduling.models import Claim
from apps.scheduling.services.claims import lifecycle
from gpucloud import hints
from tests.cast import Cast, Machine, ask, cast, give_plenty, placed

__all__ = ["cast"]

KEY = hashlib.sha256(b"the client's key").hexdigest()
ENDPOINT = {"host": "10.0.0.7", "port": 7443, "fingerprint": "f" * 64, "component": "lupine", "build": "0123456789ab"}


@pytest.fixture
def machine(cast: Cast) -> Machine:
    """Create a node that clients can reach, in a pool and for a tenant that may have remote shares."""
    give_plenty(cast.acme, cast.globex)
    machine = Machine("gpu1", cast.pool).stay_online()
    Node.objects.filter(pk=machine.node.pk).update(remote=ENDPOINT)
    Pool.objects.filter(pk=cast.pool.pk).update(remote=True, remote_mib_per_second=100)
    Tenant.objects.filter(pk=cast.acme.pk).update(remote=True)
    return machine


@pytest.fixture
def claim(cast: Cast, machine: Machine) -> Claim:
    return placed(cast, machine)[0]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Return what is published."""
    found: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(hints, "publish", found.extend)
    return found


def path_of(claim: Claim) -> str:
    return f"claims/{claim.uid}/remote/"


def test_a_member_gets_a_ticket_and_the_node_its_digest(
    cast: Cast, machine: Machine, claim: Claim, told: list[Any]
) -> None:
    answer = cast.max.call("POST", path_of(claim), {"key_sha256": KEY})
    assert answer.status == 200
    assert answer.headers["Cache-Control"] == "no-store"
    assert {name: answer.body[name] for name in ENDPOINT} == ENDPOINT
    ((group, message),) = [one for one in told if one[1]["type"] == "node.remote"]
    assert group == hint_group(machine.node.pk)
    assert message["ticket"] == hashlib.sha256(answer.body["ticket"].encode()).hexdigest()
    assert answer.body["ticket"] not in str(message)
    assert (message["claim_uid"], message["key"], message["owner"]) == (str(claim.uid), KEY, cast.acme.pk)
    assert message["bytes_per_second"] == 100 << 20


def test_each_ticket_is_audited_without_its_words(cast: Cast, claim: Claim, told: list[Any]) -> None:
    ticket = cast.max.call("POST", path_of(claim), {"key_sha256": KEY}).body["ticket"]
    event = AuditEvent.objects.filter(action="claim.remote").get()
    assert event.after is not None
    assert event.after["node"] == "gpu1"
    assert ticket not in str(event.after)


@pytest.mark.parametrize("model", [Pool, Tenant])
def test_pool_and_tenant_must_allow_it(cast: Cast, claim: Claim, told: list[Any], model: Any) -> None:
    model.objects.update(remote=False)
    answer = cast.max.call("POST", path_of(claim), {"key_sha256": KEY})
    assert (answer.status, answer.code) == (403, "remote-not-allowed")
    assert not told


def test_neither_allows_it_at_first(cast: Cast) -> None:
    assert not Pool(name="new").remote
    assert not Tenant(slug="new").remote


def test_only_an_operator_allows_a_tenant(cast: Cast) -> None:
    assert cast.anna.call("PATCH", "tenants/acme/", {"remote": True}).status == 403
    assert cast.olga.call("PATCH", "tenants/acme/", {"remote": True}).body["remote"] is True


def test_a_viewer_gets_none_and_a_stranger_learns_nothing(cast: Cast, claim: Claim) -> None:
    assert cast.vera.call("POST", path_of(claim), {"key_sha256": KEY}).status == 403
    assert cast.gus.call("POST", path_of(claim), {"key_sha256": KEY}).status == 404


@pytest.mark.parametrize("key", ["", "F" * 64, "f" * 63, "f" * 65])
def test_a_key_is_known_by_its_digest_only(cast: Cast, claim: Claim, key: str) -> None:
    assert cast.max.call("POST", path_of(claim), {"key_sha256": key}).status == 400


def test_a_node_without_an_endpoint_has_no_way(cast: Cast, claim: Claim) -> None:
    Node.objects.update(remote=None)
    answer = cast.max.call("POST", path_of(claim), {"key_sha256": KEY})
    assert (answer.status, answer.code) == (409, "no-remote-endpoint")
    assert "`remote` require" in answer.body["detail"]


def test_a_claim_that_waits_has_no_way(cast: Cast, machine: Machine) -> None:
    waiting = ask(cast)
    answer = cast.max.call("POST", path_of(waiting), {"key_sha256": KEY})
    assert (answer.status, answer.code) == (409, "no-remote-endpoint")


def test_claims_select_the_nodes_that_clients_can_reach(cast: Cast, machine: Machine) -> None:
    """The node has the label by itself, while it has an endpoint."""
    wanted = {"gpucloud.io/remote": "true"}
    placed(cast, machine, node_selector=wanted)
    Node.objects.update(remote=None)
    with pytest.raises(lifecycle.ImpossibleClaim, match=r"gpucloud\.io/remote=true"):
        ask(cast, node_selector=wanted)
