"""Visibility of pages and of their parts."""

from uuid import uuid4

import msgspec
import pytest
from django.test import Client

from agent import wire
from apps.nodes.services import nodes
from apps.quotas.models import User
from apps.scheduling.gateway import Gateway
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import GIB, Cast, Machine, ask, give, hello, lose, placed
from tests.pages.conftest import SignIn

PASSWORD = "correct horse battery"
HTMX = {"HX-Request": "true", "HX-Current-URL": "http://testserver/claims/?state=active"}


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/tenants/",
        "/tenants/acme/",
        "/tenants/acme/limits/",
        "/tenants/acme/budgets/new/",
        "/audit/",
        "/reports/",
        "/rounds/",
        "/access/",
        "/new-token/",
        "/new-node/",
        "/webhooks/",
        "/new-webhook/",
        "/tokens/",
        "/policies/",
        "/prices/",
        "/efficiency/",
        "/requests/",
        "/requests/new/",
        "/nodes/gpu1/drain/",
        "/tenants/acme/hours/",
        "/fleet/series/",
        "/claims/",
        "/claims/new/",
        "/nodes/",
        "/nodes/gpu1/",
        "/pools/",
        "/pools/default/",
        "/clusters/",
        "/new-cluster/",
        "/integrations/",
        "/proposals/",
        "/reservations/",
        "/reservations/new/",
        "/search/",
        "/help/",
    ],
)
def test_every_page_needs_somebody_signed_in_and_comes_back_afterwards(cast: Cast, path: str) -> None:
    answer = Client().get(path)
    assert answer.status_code == 302
    assert answer["Location"] == f"/sign-in/?next={path}"


def test_a_fragment_for_nobody_sends_the_whole_page_to_the_sign_in(cast: Cast) -> None:
    answer = Client().get("/claims/", headers=HTMX)
    assert (answer.status_code, answer["HX-Redirect"]) == (401, "/sign-in/?next=/claims/&ended=1")


@pytest.mark.parametrize(
    ("referer", "back"),
    [
        ("http://testserver/claims/1/?range=7d", "/claims/1/"),
        ("http://elsewhere.example/claims/1/", "/"),
        ("//elsewhere.example/claims/1/", "/"),
        ("http://[broken/", "/"),
        ("", "/"),
    ],
)
def test_numbers_for_nobody_name_the_sign_in_that_leads_back_to_our_own_page(
    cast: Cast, referer: str, back: str
) -> None:
    # Nobody learns whether the claim exists.
    path = f"/claims/{uuid4()}/series/"
    answer = Client().get(path, headers={"Accept": "application/json", "Referer": referer})
    assert (answer.status_code, answer["HX-Redirect"]) == (401, f"/sign-in/?next={back}&ended=1")


def test_signing_in_leads_to_where_one_wanted_to_be(cast: Cast) -> None:
    _with_password("anna")
    client = Client()
    answer = client.post("/sign-in/", {"username": "anna", "password": PASSWORD, "next": "/claims/"})
    assert (answer.status_code, answer["Location"]) == (302, "/claims/")
    assert client.get("/").status_code == 200


def test_signing_in_never_leads_to_another_site(cast: Cast) -> None:
    _with_password("anna")
    answer = Client().post("/sign-in/", {"username": "anna", "password": PASSWORD, "next": "https://evil.example/"})
    assert answer["Location"] == "/"


def test_a_wrong_password_says_so_in_words(cast: Cast) -> None:
    answer = Client().post("/sign-in/", {"username": "anna", "password": "wrong"})
    assert "do not match" in answer.content.decode()


def test_signing_out_ends_the_session(browser: SignIn) -> None:
    client = browser("anna")
    assert client.post("/sign-out/")["Location"] == "/sign-in/"
    assert client.get("/").status_code == 302


def test_a_foreign_tenants_claim_does_not_exist(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, _ = placed(cast, machine)
    gus = browser("gus")
    for path in ("", "series/", "resize/"):
        assert gus.get(f"/claims/{claim.uid}/{path}").status_code == 404, path
    for path in ("resize/", "release/"):
        assert gus.post(f"/claims/{claim.uid}/{path}").status_code == 404, path
    claim.refresh_from_db()
    assert claim.state == "active"


def test_the_lists_hold_ones_own_tenants_claims_only(cast: Cast, machine: Machine, browser: SignIn) -> None:
    ask(cast, name="acmes-secret")
    ask(cast, tenant=cast.globex, name="globexs-secret")
    for path in ("/", "/claims/"):
        text = browser("gus").get(path).content.decode()
        assert "globexs-secret" in text
        assert "acmes-secret" not in text
    text = browser("olga").get("/claims/").content.decode()
    assert "globexs-secret" in text
    assert "acmes-secret" in text


def test_nodes_are_the_operators(cast: Cast, machine: Machine, browser: SignIn) -> None:
    for path in ("/nodes/", "/nodes/gpu1/", "/nodes/gpu1/series/", "/nodes/gpu1/drain/"):
        assert browser("anna").get(path).status_code == 403, path
        assert browser("olga").get(path).status_code == 200, path
    assert browser("anna").post("/nodes/gpu1/cordon/", {"cordoned": "yes"}).status_code == 403
    assert browser("anna").post("/nodes/gpu1/drain/", {"act": "drain"}).status_code == 403


def test_a_node_shows_what_its_self_check_found_wrong(cast: Cast, machine: Machine, browser: SignIn) -> None:
    said = [
        wire.Check(name="disk", state="warning", detail="12 MiB free", cure="Free some."),
        wire.Check(name="driver", state="ok", detail="580, 8 GPUs"),
    ]
    nodes.take_hello(node=machine.node, hello=msgspec.structs.replace(hello("gpu1"), checks=said))
    text = browser("olga").get("/nodes/gpu1/").content.decode()
    assert "12 MiB free. Free some." in text
    assert "580, 8 GPUs" not in text


def test_the_overview_says_first_what_is_wrong(cast: Cast, machine: Machine, browser: SignIn) -> None:
    give(cast.acme, vgpus=1)
    placed(cast, machine)
    lose(machine)
    text = browser("olga").get("/").content.decode()
    assert "Node gpu1 is lost" in text
    assert "Nothing needs attention" not in text
    # A tenant's member cannot repair a node.
    assert "Node gpu1 is lost" not in browser("anna").get("/").content.decode()


def test_a_queued_claim_says_why_in_words(cast: Cast, machine: Machine, browser: SignIn) -> None:
    for _ in range(2):
        placed(cast, machine, core_request=100, gpu_count=2)
    claim = ask(cast, core_request=50, memory_mib=GIB)
    run_round(cast.pool)
    claim.refresh_from_db()
    assert claim.state == "queued"
    reason = claim.reasons[0]["detail"]
    for path in ("/", "/claims/", f"/claims/{claim.uid}/"):
        assert reason in browser("max").get(path).content.decode(), path


def test_empty_pages_say_the_next_command(cast: Cast, browser: SignIn) -> None:
    text = browser("olga").get("/").content.decode()
    for path in ("/api/v1/claims/", "/api/v1/nodes/", "/api/v1/quotas/"):
        assert path in text


def test_filters_live_in_the_url(cast: Cast, machine: Machine, browser: SignIn) -> None:
    ask(cast, name="mine")
    ask(cast, tenant=cast.globex, name="theirs")
    olga = browser("olga")
    assert "theirs" not in olga.get("/claims/?tenant=acme").content.decode()
    assert "Nothing matches" in olga.get("/claims/?state=failed").content.decode()
    text = olga.get("/claims/?state=nonsense").content.decode()
    assert "theirs" in text
    assert "nonsense is not one of the available choices" in text


def _with_password(name: str) -> None:
    user = User.objects.get(username=name)
    user.set_password(PASSWORD)
    user.save()


def test_what_an_agent_found_is_on_its_nodes_page(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, _ = placed(cast, machine)
    olga = browser("olga")
    assert "Reported by the agent" not in olga.get("/nodes/gpu1/").content.decode()
    process = wire.GpuProcess(
        pid=4711, command="<b>", gpu_uuid=machine.gpu().uuid, memory_bytes=None, claim_uid=str(claim.uid)
    )
    detail = "Process 4711 (<b>) is held by nothing."
    Gateway().event(machine.node, wire.Event(at=1.0, code="process-unlimited", detail=detail, process=process))
    text = olga.get("/nodes/gpu1/", headers={"HX-Request": "true"}).content.decode()
    assert "Process 4711 (&lt;b&gt;) is held by nothing." in text
    assert f'href="/claims/{claim.uid}/"' in text
    # The tenant's admin reads about it, without a link to the operators' page.
    text = browser("anna").get("/").content.decode()
    assert "agent.process-unlimited" in text
    assert "/nodes/gpu1/" not in text


def test_a_nodes_page_says_whether_its_claims_get_turns(cast: Cast, machine: Machine, browser: SignIn) -> None:
    olga = browser("olga")
    assert "not installed: compute limits are not enforced" in olga.get("/nodes/gpu1/").content.decode()
    assert cast.olga.get("nodes/gpu1/").body["arbiter"] is False
    nodes.take_hello(node=machine.node, hello=msgspec.structs.replace(hello("gpu1"), arbiter=True))
    assert "<dd>installed</dd>" in olga.get("/nodes/gpu1/").content.decode()
    assert cast.olga.get("nodes/gpu1/").body["arbiter"] is True


def test_a_viewer_is_told_that_viewers_ask_for_nothing(cast: Cast, browser: SignIn) -> None:
    for path in ("/claims/new/", "/reservations/new/"):
        assert "Your role does not allow this" in browser("vera").get(path).content.decode()
        for name in ("max", "olga"):
            assert "Your role does not allow this" not in browser(name).get(path).content.decode()
