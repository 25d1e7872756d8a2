"""Forms of an assignment, of a node's settings and of a namespace's tenant: changes, refusals, messages."""

import re
from typing import Any

import pytest
from django.test import Client

from apps.clusters.models import Cluster, NamespaceBinding
from apps.clusters.services import bindings
from apps.nodes.models import Node
from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.quotas.services import tenants
from apps.scheduling.models import Claim
from apps.scheduling.services.claims import resize
from apps.scheduling.services.claims.lifecycle import release_claim
from tests.cast import Cast, Machine, ask, placed
from tests.pages.conftest import SignIn
from tests.pages.test_cluster_pages import cluster

__all__ = ["cluster"]

SETTINGS = "/nodes/gpu1/settings/"


def text(client: Client, path: str) -> str:
    return " ".join(client.get(path).content.decode().split())


def submit(client: Client, path: str, values: dict[str, Any]) -> tuple[int, str]:
    """Post the form; return the status of its answer, and the page where it ends."""
    answer = client.post(path, values)
    status = answer.status_code
    page = client.get(answer["Location"]) if status == 302 else answer
    return status, " ".join(page.content.decode().split())


def hidden_version(page: str) -> str:
    found = re.search(r'name="version" value="([^"]+)"', page)
    assert found is not None
    return found[1]


def sharing(claim: Claim) -> tuple[int, bool, bool]:
    claim.refresh_from_db()
    return claim.weight, claim.best_effort, claim.rebalance


def test_a_claims_part_is_changed_while_it_runs(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, _ = placed(cast, machine)
    max_, path, frame = browser("max"), f"/claims/{claim.uid}/sharing/", machine.node.frame
    assert path in max_.get(f"/claims/{claim.uid}/").content.decode()
    page = text(max_, path)
    assert "No change here restarts programs." in page
    assert "the claim's part, among the weights" in page.replace("&#x27;", "'")
    asked = {"weight": "3", "best_effort": "best-effort", "version": hidden_version(page)}
    status, page = submit(max_, path, asked)
    assert (status, sharing(claim)) == (302, (3, True, False))
    assert "is changed: weight, class, may be rebalanced." in page
    assert Node.objects.get(pk=machine.node.pk).frame > frame
    event = AuditEvent.objects.filter(action="claim.resize").get()
    before, after = event.before or {}, event.after or {}
    assert (before["weight"], after["weight"]) == (1, 3)
    page = text(max_, path)
    assert "Becoming guaranteed is refused where a reservation needs" in page
    status, page = submit(max_, path, {**asked, "version": hidden_version(page)})
    assert "Nothing has changed." in page
    assert AuditEvent.objects.filter(action="claim.resize").count() == 1


def test_who_was_faster_with_a_claim_is_said_and_nothing_changed(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim = ask(cast)
    max_, path = browser("max"), f"/claims/{claim.uid}/sharing/"
    page = text(max_, path)
    assert "It waits: all of this counts once it is placed." in page
    # A step of its life is not a change by a user.
    Claim.objects.filter(pk=claim.pk).update(version=claim.version + 1)
    asked = {"weight": "5", "best_effort": "guaranteed", "rebalance": "on", "version": hidden_version(page)}
    assert submit(max_, path, asked)[0] == 302
    status, page = submit(max_, path, {**asked, "weight": "7"})
    assert (status, sharing(claim)) == (200, (5, False, True))
    assert "Changed by user:max at" in page
    assert "It is now: weight 5, guaranteed, may be rebalanced." in page
    assert 'value="7"' in page
    assert submit(max_, path, {**asked, "weight": "7", "version": hidden_version(page)})[0] == 302
    assert sharing(claim) == (7, False, True)


def test_a_claims_part_that_cannot_be_is_refused(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, _ = placed(cast, machine)
    path, before = f"/claims/{claim.uid}/sharing/", sharing(claim)
    asked = {"weight": "2", "best_effort": "guaranteed", "rebalance": "on", "version": "1-0-1-0"}
    for wrong in ({"weight": "0"}, {"weight": "100000"}, {"weight": ""}, {"best_effort": "king"}):
        assert submit(browser("max"), path, {**asked, **wrong})[0] == 422, wrong
    vera = browser("vera")
    assert path not in text(vera, f"/claims/{claim.uid}/")
    assert (vera.get(path).status_code, vera.post(path, asked).status_code) == (403, 403)
    assert browser("gus").get(path).status_code == 404
    assert sharing(claim) == before
    release_claim(principal=SYSTEM, claim=claim)
    assert path not in text(browser("max"), f"/claims/{claim.uid}/")
    status, page = submit(browser("max"), path, asked)
    assert (status, "has ended or is ending" in page) == (302, True)
    assert sharing(claim) == before


@pytest.mark.parametrize("facts", [{"reserved": True, "gpu_uuid": "GPU-1"}, {"core_request": 30}])
def test_room_that_is_anothers_is_refused_in_words(
    cast: Cast, machine: Machine, browser: SignIn, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any]
) -> None:
    claim, _ = placed(cast, machine, best_effort=True)

    def refuse(*_: Any) -> None:
        raise resize.NoRoom("What is free on GPU 1 is reserved.", **facts)

    monkeypatch.setattr(resize, "_refuse_reserved", refuse)
    max_, path = browser("max"), f"/claims/{claim.uid}/sharing/"
    version = hidden_version(text(max_, path))
    asked = {"weight": "1", "best_effort": "guaranteed", "rebalance": "on", "version": version}
    status, page = submit(max_, path, asked)
    assert (status, sharing(claim)) == (422, (1, True, True))
    assert "The GPU has no room for this. What is free on GPU 1 is reserved." in page


def test_an_empty_node_moves_and_one_with_claims_does_not(cast: Cast, machine: Machine, browser: SignIn) -> None:
    tenants.create_pool(principal=SYSTEM, name="spare")
    olga = browser("olga")
    assert f'href="{SETTINGS}"' in text(olga, "/nodes/gpu1/")
    page = text(olga, SETTINGS)
    assert "No claim is on it: it can move to another pool" in page
    asked = {"pool": "spare", "version": hidden_version(page)}
    status, page = submit(olga, SETTINGS, asked)
    node = Node.objects.get(name="gpu1")
    assert (status, node.pool.name, node.repair_drift) == (302, "spare", False)
    assert "gpu1 is changed: pool, repair drift." in page
    assert node.frame > machine.node.frame
    asked |= {"pool": "default", "repair_drift": "on"}
    status, page = submit(olga, SETTINGS, asked)
    assert (status, Node.objects.get(name="gpu1").pool.name) == (200, "spare")
    assert "Changed by user:olga at" in page
    assert "It is now: pool spare, drift waits for an operator." in page
    assert submit(olga, SETTINGS, {**asked, "version": hidden_version(page)})[0] == 302
    placed(cast, machine)
    page = text(olga, SETTINGS)
    assert "1 claim is on it, so it stays in pool default" in page
    status, page = submit(olga, SETTINGS, {"pool": "spare", "version": hidden_version(page)})
    assert (status, "carries claims of pool default: release them first." in page) == (422, True)
    node.refresh_from_db()
    assert (node.pool.name, node.repair_drift) == ("default", True)


def test_a_nodes_settings_are_the_operators(cast: Cast, machine: Machine, browser: SignIn) -> None:
    cast.pool.change(repair_drift=False)
    asked = {"pool": "default", "version": "default True"}
    anna, olga = browser("anna"), browser("olga")
    assert (anna.get(SETTINGS).status_code, anna.post(SETTINGS, asked).status_code) == (403, 403)
    assert "Pool default does not repair drift" in text(olga, SETTINGS)
    assert submit(olga, SETTINGS, {**asked, "pool": "none"})[0] == 422
    assert olga.get("/nodes/none/settings/").status_code == 404
    assert Node.objects.get(name="gpu1").repair_drift
    assert "Nothing has changed." in submit(olga, SETTINGS, {**asked, "repair_drift": "on"})[1]
    assert not AuditEvent.objects.filter(action="node.change").exists()


def test_another_tenant_pays_for_a_namespace(cast: Cast, cluster: Cluster, browser: SignIn) -> None:
    olga, row = browser("olga"), cluster.bindings.get()
    path = f"/clusters/kube/namespaces/{row.pk}/tenant/"
    assert f'href="{path}" aria-label="Another tenant for ml"' in text(olga, "/clusters/kube/")
    page = text(olga, path)
    assert "No pod there is charged to acme" in page
    asked = {"tenant": "globex", "version": hidden_version(page)}
    assert "Nothing has changed." in submit(olga, path, {**asked, "tenant": "acme"})[1]
    status, page = submit(olga, path, asked)
    assert (status, "globex is charged for namespace ml from now on." in page) == (302, True)
    assert cluster.bindings.get().tenant == cast.globex
    status, page = submit(olga, path, {**asked, "tenant": "acme"})
    assert (status, cluster.bindings.get().tenant) == (200, cast.globex)
    assert "Changed by user:olga at" in page
    assert "It is now: globex." in page
    assert submit(olga, path, {"tenant": "acme", "version": hidden_version(page)})[0] == 302
    assert cluster.bindings.get().tenant == cast.acme


def test_who_pays_is_the_operators_to_say(cast: Cast, cluster: Cluster, browser: SignIn) -> None:
    row = cluster.bindings.get()
    path, asked = f"/clusters/kube/namespaces/{row.pk}/tenant/", {"tenant": "globex", "version": row.version}
    anna, olga = browser("anna"), browser("olga")
    assert (anna.get(path).status_code, anna.post(path, asked).status_code) == (403, 403)
    for wrong in ({"tenant": "nobody"}, {"tenant": ""}):
        assert submit(olga, path, {**asked, **wrong})[0] == 422
    assert olga.get(path.replace(str(row.pk), "999999")).status_code == 404
    assert olga.get(path.replace("kube", "other")).status_code == 404
    bindings.unbind(principal=SYSTEM, binding=row)
    assert olga.post(path, asked).status_code == 404
    assert not NamespaceBinding.objects.exists()
