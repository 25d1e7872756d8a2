"""Pools on operators' pages; proposals on the pages of those who may answer them."""

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.console.pools.pool_forms import BOUNDS, GROUPS, SETTABLE, label_in_sentence
from apps.quotas.models import AuditEvent, Pool
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim, Proposal
from apps.scheduling.services.claims.sharing import change_pool
from tests.cast import Cast, Machine, ask, placed
from tests.pages.conftest import SignIn
from tests.scheduling.clock import Clock, clock
from tests.scheduling.idling import measured

__all__ = ["clock"]


def text(answer: Any) -> str:
    return " ".join(answer.content.decode().split())


def form_data(pool: Pool, **changes: Any) -> dict[str, Any]:
    """Return the form as a browser sends it."""
    values = {name: getattr(pool, name) for name in SETTABLE} | dict.fromkeys(BOUNDS, "") | pool.rebalance_bounds
    for name in ("unused_seconds", "oversubscribe", "pack_keep_percent", "remote_mib_per_second", "longest_kernel_ms"):
        if getattr(pool, name) is None:
            values[f"{name}_unlimited"] = "on"
    sent = {**values, "version": pool.version, "act": "apply", **changes}
    return {name: "" if value is None else value for name, value in sent.items() if value is not False}


@pytest.mark.parametrize(
    ("name", "words"),
    [("mps_group", "MPS group"), ("idle_percent", "idle threshold"), ("unknown_field", "unknown field")],
)
def test_a_label_in_a_sentence_keeps_the_capitals_of_abbreviations(name: str, words: str) -> None:
    assert label_in_sentence(name) == words


def test_pools_are_the_operators(cast: Cast, machine: Machine, browser: SignIn) -> None:
    for path in ("/pools/", "/pools/default/"):
        assert browser("anna").get(path).status_code == 403, path
        assert browser("olga").get(path).status_code == 200, path
    assert browser("anna").post("/pools/default/", form_data(cast.pool, audit_policy="kill")).status_code == 403
    assert browser("olga").get("/pools/none/").status_code == 404
    assert "/pools/" in text(browser("olga").get("/nodes/"))
    assert "/pools/" not in text(browser("anna").get("/"))
    cast.pool.refresh_from_db()
    assert cast.pool.audit_policy == "warn"


def test_the_page_says_what_the_api_says_of_each_field(cast: Cast, browser: SignIn) -> None:
    page = text(browser("olga").get("/pools/default/"))
    for group in GROUPS:
        for name in group.names:
            assert f'id="id_{name}"' in page, name
    assert "Time without measurements does not count." in page
    assert "Kill: end the process" in page


def test_what_is_applied_is_in_the_audit_log_and_nothing_else(cast: Cast, machine: Machine, browser: SignIn) -> None:
    answer = browser("olga").post(
        "/pools/default/",
        form_data(cast.pool, audit_policy="kill", idle_rule="release", idle_seconds=60, floor_percent=10),
    )
    assert (answer.status_code, answer["Location"]) == (302, "/pools/default/")
    cast.pool.refresh_from_db()
    assert (cast.pool.audit_policy, cast.pool.idle_rule, cast.pool.rebalance_bounds) == (
        "kill",
        "release",
        {"floor_percent": 10},
    )
    row = AuditEvent.objects.get(action="pool.change")
    assert row.after == {
        "audit_policy": "kill",
        "idle_rule": "release",
        "idle_seconds": 60,
        "rebalance_bounds": {"floor_percent": 10},
    }


def test_a_calendar_stays_though_the_form_has_none(cast: Cast, browser: SignIn) -> None:
    calendar = [{"days": [0], "from": "20:00", "to": "06:00", "share_percent": 10}]
    change_pool(principal=SYSTEM, pool=cast.pool, rebalance_bounds={"calendar": calendar, "step_percent": 5})
    cast.pool.refresh_from_db()
    sent = form_data(cast.pool, step_percent=7)
    del sent["calendar"]
    browser("olga").post("/pools/default/", sent)
    cast.pool.refresh_from_db()
    assert cast.pool.rebalance_bounds == {"calendar": calendar, "step_percent": 7}


def test_a_change_of_the_back_end_says_which_gpus_keep_theirs_and_which_nodes_cannot_serve_it(
    cast: Cast, machine: Machine, browser: SignIn
) -> None:
    _, assignment = placed(cast, machine)
    page = text(browser("olga").post("/pools/default/", form_data(cast.pool, backend="mps", act="preview")))
    assert "1 GPU keeps its back end until its last claim has left" in page
    assert f"Node {machine.name} cannot serve back end mps and would take no new claims" in page
    assert "a fatal fault of one program ends all of them there" not in page
    shared = form_data(cast.pool, backend="mps", mps_group="pool", act="preview")
    assert "a fatal fault of one program ends all of them there" in text(
        browser("olga").post("/pools/default/", shared)
    )
    cast.pool.refresh_from_db()
    assert cast.pool.backend == "turns"
    assert browser("olga").post("/pools/default/", form_data(cast.pool, backend="mps")).status_code == 302
    assert "mps when its last claim has left" in text(browser("olga").get(f"/gpus/{assignment.gpu.uuid}/"))
    rotates = form_data(Pool.objects.get(), oversubscribe=2, oversubscribe_unlimited=False)
    refused = browser("olga").post("/pools/default/", rotates)
    assert "can be neither suspended nor moved" in text(refused)


def test_a_preview_says_what_would_be_and_changes_nothing(
    clock: Clock, cast: Cast, machine: Machine, browser: SignIn
) -> None:
    claim, _ = placed(cast, machine, name="sleeper", core_request=40)
    measured(claim, clock, seconds=90)
    machine.node.refresh_from_db()
    frame = machine.node.frame
    page = text(
        browser("olga").post(
            "/pools/default/",
            form_data(
                cast.pool,
                act="preview",
                idle_rule="release",
                idle_seconds=60,
                audit_policy="fence",
                rebalance_mode="propose",
                window_seconds=60,
            ),
        )
    )
    assert "idle rule: report → release" in page
    assert "sleeper</a>" in page
    assert "would be idle, and released after its notice" in page
    assert "1 node would be told" in page
    assert "lend: It used at most 0.0 % of a GPU" in page
    cast.pool.refresh_from_db()
    machine.node.refresh_from_db()
    assert (cast.pool.idle_rule, cast.pool.version, machine.node.frame) == ("report", 1, frame)
    assert not Proposal.objects.exists()
    assert not AuditEvent.objects.filter(action="pool.change").exists()


def test_a_preview_of_fair_share_says_what_it_reorders(cast: Cast, machine: Machine, browser: SignIn) -> None:
    ask(cast, core_request=100)
    answer = browser("olga").post("/pools/default/", form_data(cast.pool, fair_share="decayed") | {"act": "preview"})
    page = text(answer)
    assert "fair share: current → decayed" in page
    assert "1 waiting claim would get its place in the queue anew" in page
    assert "/pools/default/what-if/" in page
    assert Pool.objects.get(name="default").fair_share == "current"


def test_who_was_faster_is_named_and_what_was_typed_is_kept(cast: Cast, browser: SignIn) -> None:
    sent = form_data(cast.pool, idle_seconds=77)
    olga = browser("olga")
    change_pool(principal=SYSTEM, pool=cast.pool, audit_policy="kill")
    page = text(olga.post("/pools/default/", sent))
    assert "Changed by system" in page
    assert "audit policy kill" in page
    assert 'value="77"' in page
    version = re.search(r'name="version" value="(\d+)"', page)
    assert version is not None
    assert olga.post("/pools/default/", {**sent, "version": version[1]}).status_code == 302
    cast.pool.refresh_from_db()
    assert (cast.pool.idle_seconds, cast.pool.audit_policy) == (77, "warn")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"idle_seconds": 5}, "greater than or equal to 10"),
        ({"sharing_policy": "average"}, "from 2 to 16"),
        ({"idle_rule": "shrink", "sharing_policy": "fixed"}, "idle_rule shrink lends what is idle"),
        ({"idle_percent": 9}, "Must be above idle_percent"),
        ({"audit_policy": "nonsense"}, "not one of the available choices"),
    ],
)
def test_a_refusal_is_said_in_the_form(cast: Cast, browser: SignIn, wrong: dict[str, Any], words: str) -> None:
    answer = browser("olga").post("/pools/default/", form_data(cast.pool, **wrong))
    assert (answer.status_code, words in text(answer)) == (422, True)
    cast.pool.refresh_from_db()
    assert cast.pool.version == 1


@pytest.fixture
def pending(cast: Cast, machine: Machine) -> Proposal:
    """Create a proposal for a claim of acme's."""
    claim, _ = placed(cast, machine, name="hungry", core_request=20, core_limit=40)
    return Proposal.objects.create(
        pool=cast.pool,
        claim=claim,
        kind="limit",
        policy="feedback",
        before={"core_limit": 40},
        after={"core_limit": 60},
        explanation="Its launches waited 50 % of the last 300 s.",
        numbers={"throttled_percent": 50.0},
    )


def answered(client: Client, proposal: Proposal, what: str, **more: Any) -> str:
    sent = {"version": proposal.version, **more}
    answer = client.post(f"/proposals/{proposal.uid}/{what}/", sent, follow=True)
    return text(answer) if answer.status_code == 200 else str(answer.status_code)


def test_a_proposal_shows_why_and_its_numbers_to_its_tenant_and_no_other(pending: Proposal, browser: SignIn) -> None:
    for who in ("max", "olga"):
        page = text(browser(who).get("/proposals/"))
        assert "Its launches waited 50 %" in page
        assert 'throttled percent <span class="num">50.0' in page
        assert 'core limit <span class="num">40 → 60' in page
        assert "Accept the change of hungry" in page
    assert "hungry" not in text(browser("gus").get("/proposals/"))
    assert answered(browser("gus"), pending, "accept") == "404"
    assert "No proposals pending approval" in text(browser("gus").get("/proposals/"))


def test_a_yes_changes_the_claim_and_a_no_leaves_it(pending: Proposal, browser: SignIn) -> None:
    other = Proposal.objects.create(
        pool=pending.pool, claim=place_another(pending), kind="limit", policy="feedback", before={"core_limit": 40},
        after={"core_limit": 60}, explanation="It waited.",
    )  # fmt: skip
    assert "The claim is changed as proposed." in answered(browser("max"), pending, "accept")
    assert Claim.objects.get(pk=pending.claim_id).core_limit == 60
    assert "stays as it is" in answered(browser("max"), other, "dismiss")
    assert Claim.objects.get(pk=other.claim_id).core_limit == 40
    page = text(browser("max").get("/proposals/?state=all"))
    assert 'data-state="applied"' in page
    assert 'data-state="dismissed"' in page
    pending.refresh_from_db()
    assert "is applied: nothing is left to decide" in answered(browser("max"), pending, "dismiss")


@pytest.mark.parametrize("version", ["", "nonsense", "-1", "²", "9" * 30])
def test_an_answer_without_the_version_that_was_seen_decides_nothing(
    version: str, pending: Proposal, browser: SignIn
) -> None:
    assert "Somebody answered it" in answered(browser("max"), pending, "accept", version=version)
    assert Claim.objects.get(pk=pending.claim_id).core_limit == 40


def place_another(proposal: Proposal) -> Claim:
    """Place another claim beside it."""
    claim: Claim = Claim.objects.get(pk=proposal.claim_id)
    return Claim.objects.create(
        tenant=claim.tenant, pool=claim.pool, name="other", core_request=20, core_limit=40, memory_mib=1, created_by="x"
    )


def test_an_answer_to_what_is_no_longer_so_is_refused(pending: Proposal, browser: SignIn) -> None:
    assert "Somebody answered it" in answered(browser("max"), pending, "accept", version=99)
    Claim.objects.filter(pk=pending.claim_id).update(core_limit=50)
    assert "The claim has changed since" in answered(browser("max"), pending, "accept")
    assert Claim.objects.get(pk=pending.claim_id).core_limit == 50


def test_who_may_only_look_gets_no_buttons(pending: Proposal, browser: SignIn, cast: Cast) -> None:
    page = text(browser("vera").get("/proposals/"))
    assert "hungry" in page
    assert "Accept the change" not in page
    assert answered(browser("vera"), pending, "accept") == "403"


def test_filters_of_proposals_live_in_the_url(pending: Proposal, browser: SignIn) -> None:
    assert "hungry" in text(browser("max").get("/proposals/?pool=default"))
    assert "Nothing matches" in text(browser("max").get("/proposals/?state=applied"))
    assert "hungry" in text(browser("max").get("/proposals/?state=nonsense"))


def test_the_list_of_pools_says_what_waits(pending: Proposal, browser: SignIn) -> None:
    assert "1 to decide" in text(browser("olga").get("/pools/"))


def test_the_list_of_pools_reads_each_gpu_once(cast: Cast, machine: Machine, browser: SignIn) -> None:
    placed(cast, machine, core_request=30)
    Pool.objects.create(name="empty")
    olga = browser("olga")
    with CaptureQueriesContext(connection) as asked:
        page = text(olga.get("/pools/"))
    assert sum(query["sql"].count('FROM "nodes_gpu"') for query in asked) == 1
    assert '<td class="num">4</td>' in page
    assert "30 % <span" in page
    assert '<td class="num">0</td>' in page
    rows = {one["pool"]: one for one in olga.get("/pools/?format=json").json()}
    assert [rows["default"][name] for name in ("gpu_count", "core_total", "core_leased")] == [4, 400, 30]
    assert rows["empty"]["gpu_count"] == 0


def test_a_pool_is_made_and_its_name_taken_only_once(cast: Cast, browser: SignIn) -> None:
    olga = browser("olga")
    assert "/new-pool/" in text(olga.get("/pools/"))
    made = {"name": "a100", "description": "The old ones", "sharing_policy": "average", "parts": 4}
    assert "Pool a100 created" in text(olga.post("/new-pool/", made, follow=True))
    pool = Pool.objects.get(name="a100")
    assert (pool.description, pool.sharing_policy, pool.parts) == ("The old ones", "average", 4)
    refused = {"taken": made, "parts": made | {"name": "b", "parts": ""}, "name": made | {"name": "No Name"}}
    for why, asked in refused.items():
        assert olga.post("/new-pool/", asked).status_code == 422, why
    assert Pool.objects.filter(name__in=["b", "No Name"]).count() == 0
    assert browser("anna").get("/new-pool/").status_code == 403


def test_a_pool_is_rebalanced_when_somebody_says_so(cast: Cast, machine: Machine, browser: SignIn) -> None:
    way, olga = f"/pools/{cast.pool.name}/rebalance/", browser("olga")
    assert way not in text(olga.get(f"/pools/{cast.pool.name}/"))
    assert "has rebalance_mode off" in text(olga.post(way, follow=True))
    Pool.objects.update(rebalance_mode="propose")
    placed(cast, machine)
    assert way in text(olga.get(f"/pools/{cast.pool.name}/"))
    # It has no samples yet.
    assert "0 claims checked, 0 to change." in text(olga.post(way, follow=True))
    assert browser("anna").post(way).status_code == 403
