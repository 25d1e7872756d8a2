"""The field `remote` of a claim: which nodes it is placed on, who gets a ticket, and where it is shown."""

import hashlib
from typing import Any

import pytest

from apps.nodes.models import Node
from apps.quotas.models import AuditEvent, Pool, Tenant
from apps.scheduling.core.values import Request
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.lifecycle import ImpossibleClaim, request_of
from apps.scheduling.services.cycles.rounds import run_round
from gpucloud import hints
from tests.cast import Cast, Machine, ask, cast, give_plenty, placed
from tests.pages.conftest import SignIn, browser

__all__ = ["browser", "cast"]

KEY = {"key_sha256": hashlib.sha256(b"the client's key").hexdigest()}
ENDPOINT = {"host": "10.0.0.7", "port": 7443, "fingerprint": "f" * 64, "component": "lupine", "build": "0123456789ab"}
SIZE = {"tenant": "acme", "core_request": 10, "memory_mib": 1024}


@pytest.fixture
def machines(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> tuple[Machine, Machine]:
    """Create a node without an endpoint and one with it, in a pool and for a tenant that may have remote shares."""
    give_plenty(cast.acme)
    Pool.objects.filter(pk=cast.pool.pk).update(remote=True)
    Tenant.objects.filter(pk=cast.acme.pk).update(remote=True)
    found = Machine("gpu1", cast.pool).stay_online(), Machine("gpu2", cast.pool).stay_online()
    Node.objects.filter(name="gpu2").update(remote=ENDPOINT)
    cast.pool.refresh_from_db()
    monkeypatch.setattr(hints, "publish", lambda messages: None)
    return found


def nodes_of(claim: Claim) -> list[str]:
    return [row.gpu.node.name for row in claim.assignments.live().select_related("gpu__node")]


def test_a_claim_allows_it_unless_it_says_otherwise(cast: Cast, machines: Any) -> None:
    answer = cast.max.post("claims/", SIZE)
    assert answer.body["remote"] == "allow"
    assert request_of(Claim.objects.get()).node_selector == Request(1, 10, 1024).node_selector


def test_one_that_requires_it_is_placed_where_clients_can_come(cast: Cast, machines: Any) -> None:
    """The first claim takes the node that the policy prefers; the second would follow it there."""
    ask(cast, core_request=10)
    wanted = ask(cast, core_request=10, remote="require")
    run_round(cast.pool)
    plain = Claim.objects.exclude(pk=wanted.pk).get()
    assert (nodes_of(plain), nodes_of(wanted)) == (["gpu1"], ["gpu2"])


def test_one_that_requires_it_is_refused_where_no_node_takes_clients(cast: Cast, machines: Any) -> None:
    Node.objects.update(remote=None)
    with pytest.raises(ImpossibleClaim, match=r"gpucloud\.io/remote=true"):
        ask(cast, remote="require")
    dry = cast.max.call("POST", "claims/?dry_run=true", {**SIZE, "remote": "require"})
    assert (dry.status, dry.code) == (422, "impossible-claim")


def test_one_that_refuses_it_gets_no_ticket(cast: Cast, machines: Any) -> None:
    claim, _ = placed(cast, machines[1], remote="never", node_selector={"gpucloud.io/node": "gpu2"})
    answer = cast.max.post(f"claims/{claim.uid}/remote/", KEY)
    assert (answer.status, answer.code) == (403, "remote-not-allowed")
    assert "`remote` is never" in answer.body["detail"]
    assert cast.max.patch(f"claims/{claim.uid}/", {"remote": "allow"}, if_match="*").body["remote"] == "allow"
    assert cast.max.post(f"claims/{claim.uid}/remote/", KEY).status == 200
    event = AuditEvent.objects.filter(action="claim.resize").get()
    assert ((event.before or {})["remote"], (event.after or {})["remote"]) == ("never", "allow")


def test_a_claim_that_runs_elsewhere_cannot_require_it(cast: Cast, machines: Any) -> None:
    claim, _ = placed(cast, machines[0], node_selector={"gpucloud.io/node": "gpu1"})
    answer = cast.max.patch(f"claims/{claim.uid}/", {"remote": "require"}, if_match="*")
    assert (answer.status, answer.code) == (409, "no-remote-endpoint")
    claim.refresh_from_db()
    assert claim.remote == "allow"


def test_one_that_waits_can_require_it_until_no_node_could_take_it(cast: Cast, machines: Any) -> None:
    claim = ask(cast, core_request=10)
    path = f"claims/{claim.uid}/"
    assert cast.max.patch(path, {"remote": "require"}, if_match="*").status == 200
    cast.max.patch(path, {"remote": "allow"}, if_match="*")
    Node.objects.update(remote=None)
    answer = cast.max.patch(path, {"remote": "require"}, if_match="*")
    assert (answer.status, answer.code) == (422, "impossible-claim")


@pytest.mark.parametrize("word", ["", "maybe", None, True])
def test_other_words_are_refused(cast: Cast, machines: Any, word: Any) -> None:
    assert cast.max.post("claims/", {**SIZE, "remote": word}).status == 400


def test_members_of_an_elastic_group_have_it_too(cast: Cast, machines: Any) -> None:
    group = {"group": "train", "group_size": 2, "group_most": 3}
    assert cast.max.post("claims/", {**SIZE, **group, "remote": "require"}).status == 201
    assert set(Claim.objects.values_list("remote", flat=True)) == {"require"}
    created = AuditEvent.objects.filter(action="claim.create")
    assert {(event.after or {})["remote"] for event in created} == {"require"}


def test_pages_take_show_and_change_it(cast: Cast, machines: Any, browser: SignIn) -> None:
    max_ = browser("max")
    typed = {"tenant": "acme", "name": "far", "pool": "default", "gpu_count": "1", "core_request": "10", "weight": "1"}
    assert max_.post("/claims/new/", {**typed, "memory_mib": "1 GiB", "remote": "require"}).status_code == 302
    claim = Claim.objects.get()
    assert claim.remote == "require"
    page = " ".join(max_.get(f"/claims/{claim.uid}/").content.decode().split())
    assert "Use from other machines</dt><dd>needed: only nodes that clients can reach" in page
    form = max_.get(f"/claims/{claim.uid}/sharing/").context["form"]
    sent = {name: form[name].value() for name in form.fields} | {"remote": "never"}
    sent = {name: value for name, value in sent.items() if value not in (None, False)}
    assert max_.post(f"/claims/{claim.uid}/sharing/", sent).status_code == 302
    claim.refresh_from_db()
    assert claim.remote == "never"
