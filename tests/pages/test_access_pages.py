"""Changes of members, tokens, agents, prices and requests on pages."""

import csv
import io
import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from apps.nodes.models import Node
from apps.quotas.models import AuditEvent, Budget, Membership, Price, QuotaRequest, ResourceQuota, Token
from apps.quotas.principals import SYSTEM
from apps.quotas.services import quotas, requests, tokens
from gpucloud.web.browsers import name_browser
from gpucloud.web.keyset import PER_PAGE
from tests.cast import MODEL, Api, Cast, Machine, give, placed
from tests.pages.conftest import SignIn


def text(answer: Any) -> str:
    return " ".join(answer.content.decode().split())


def test_a_tenants_admin_names_members_and_removes_them(cast: Cast, browser: SignIn) -> None:
    anna = browser("anna")
    anna.post("/tenants/acme/members/", {"username": "gus", "role": "viewer"})
    assert Membership.objects.get(tenant=cast.acme, user__username="gus").role == "viewer"
    anna.post("/tenants/acme/members/", {"username": "gus", "role": "member"})
    assert Membership.objects.get(tenant=cast.acme, user__username="gus").role == "member"
    assert 'aria-label="Role of gus"' in text(anna.get("/tenants/acme/"))
    anna.post("/tenants/acme/members/remove/", {"username": "gus"})
    assert not Membership.objects.filter(tenant=cast.acme, user__username="gus").exists()
    for nobody in ("eve", "e\0ve"):
        page = text(anna.post("/tenants/acme/members/", {"username": nobody}, follow=True))
        assert "There is no user of this name" in page
    assert anna.post("/tenants/acme/members/remove/", {"username": "e\0ve"}).status_code == 302
    assert AuditEvent.objects.filter(action="member.remove", actor="user:anna").exists()


def test_members_are_changed_by_nobody_else(cast: Cast, browser: SignIn) -> None:
    for who, status in (("vera", 403), ("gus", 404)):
        for path in ("members/", "members/remove/"):
            answer = browser(who).post(f"/tenants/acme/{path}", {"username": "anna", "role": "viewer"})
            assert answer.status_code == status, (who, path)
    assert Membership.objects.get(tenant=cast.acme, user__username="anna").role == "admin"
    assert "Remove…" not in text(browser("vera").get("/tenants/acme/"))


def test_a_tokens_text_is_shown_once_and_works_until_it_is_revoked(cast: Cast, browser: SignIn) -> None:
    anna = browser("anna")
    posted = {"name": "ci", "tenant": "acme", "role": "member", "may": "read", "days": "7", "cidrs": ""}
    made = anna.post("/new-token/", posted, follow=True)
    assert [status for _, status in made.redirect_chain] == [302]
    assert "no-store" in made["Cache-Control"]
    shown = re.search(r"gpc_[0-9a-f]+\.[\w-]+", text(made))
    assert shown is not None
    token = Token.objects.get(name="ci")
    assert token.expires_at is not None
    assert token.expires_at < timezone.now() + timedelta(days=7)
    assert Api(shown[0]).get("claims/").status == 200
    assert Api(shown[0]).post("claims/", {}).status == 403
    page = text(anna.get("/tenants/acme/"))
    assert token.key in page
    assert shown[0] not in page
    assert browser("gus").post(f"/tokens/{token.key}/revoke/").status_code == 404
    anna.post(f"/tokens/{token.key}/revoke/")
    assert Api(shown[0]).get("claims/").status == 401


def test_nobody_makes_a_token_beyond_their_tenants(cast: Cast, browser: SignIn) -> None:
    posted = {"name": "ci", "tenant": "", "role": "admin", "may": "all", "days": "", "cidrs": ""}
    assert browser("vera").get("/new-token/").status_code == 404
    for tenant in ("", "globex"):
        assert browser("anna").post("/new-token/", {**posted, "tenant": tenant}).status_code == 422
    answer = browser("olga").post("/new-token/", {**posted, "cidrs": "everywhere"})
    assert "everywhere is not a network" in text(answer)
    assert not Token.objects.filter(name="ci").exists()
    assert browser("olga").post("/new-token/", posted).status_code == 302
    assert Token.objects.get(name="ci").tenant is None


def test_many_agents_come_in_parts_and_the_file_has_them_all(cast: Cast, browser: SignIn) -> None:
    for number in range(PER_PAGE + 2):
        Node.objects.create(name=f"node-{number}", pool=cast.pool)
    olga = browser("olga")
    first = text(olga.get("/access/"))
    assert ("node-0<" in first, "node-49<" in first, "node-50<" in first) == (True, True, False)
    older = re.search(r'href="(\?before=[^"]+)"', first)
    assert older is not None
    second = text(olga.get(f"/access/{older[1]}"))
    assert ("node-49<" in second, "node-50<" in second, "node-51<" in second) == (False, True, True)
    rows = list(csv.DictReader(io.StringIO(olga.get("/access/?format=csv").content.decode())))
    assert len(rows) == PER_PAGE + 2


def test_tokens_and_agents_are_the_operators_and_files_hold_no_secret(
    cast: Cast, machine: Machine, browser: SignIn
) -> None:
    token, _ = tokens.create(principal=SYSTEM, name="service", tenant=None)
    olga = browser("olga")
    assert f"gpc_{token.key}" in text(olga.get("/tokens/"))
    assert 'href="/nodes/gpu1/"' in text(olga.get("/access/"))
    rows = list(csv.DictReader(io.StringIO(olga.get("/access/?format=csv").content.decode())))
    assert [(row["node"], row["state"]) for row in rows] == [("gpu1", "ready")]
    file = olga.get("/tokens/?format=json").content.decode()
    assert token.key in file
    assert token.digest not in file
    assert browser("anna").get("/access/").status_code == 403


def test_a_node_is_made_by_one_copied_line_and_gets_another(cast: Cast, browser: SignIn) -> None:
    olga = browser("olga")
    made = olga.post("/new-node/", {"name": "gpu7", "pool": "default"}, follow=True)
    assert "gpe_" in text(made)
    assert "gpe_" not in text(olga.get("/nodes/gpu7/command/", follow=True))
    first = Node.objects.get(name="gpu7").enrolment_digest
    assert "There is a node gpu7 already" in text(olga.post("/new-node/", {"name": "gpu7", "pool": "default"}))
    assert "gpe_" in text(olga.post("/nodes/gpu7/renew/", follow=True))
    assert Node.objects.get(name="gpu7").enrolment_digest != first
    assert browser("anna").post("/new-node/", {"name": "gpu8", "pool": "default"}).status_code == 403
    assert browser("anna").post("/nodes/gpu7/renew/").status_code == 403


def test_prices_are_set_by_operators_and_read_by_all(cast: Cast, machine: Machine, browser: SignIn) -> None:
    posted = {"gpu_model": MODEL, "pool": "", "valid_from": "2026-01-01", "per_gpu_hour": "2.5"}
    assert browser("anna").post("/prices/", posted).status_code == 403
    olga = browser("olga")
    assert olga.post("/prices/", posted).status_code == 302
    assert "already has a price" in text(olga.post("/prices/", posted))
    assert "2.5000" in text(browser("vera").get("/prices/"))
    assert json.loads(browser("vera").get("/prices/?format=json").content)[0]["gpu_model"] == MODEL
    price = Price.objects.get()
    assert browser("anna").post(f"/prices/{price.pk}/remove/").status_code == 403
    olga.post(f"/prices/{price.pk}/remove/")
    assert not Price.objects.exists()


def test_a_tenants_page_counts_its_hours_of_this_month(cast: Cast, machine: Machine, browser: SignIn) -> None:
    placed(cast, machine, core_request=50)
    page = text(browser("vera").get("/tenants/acme/hours/"))
    assert MODEL in page
    assert "no price" in page
    assert browser("gus").get("/tenants/acme/hours/").status_code == 404


def test_a_tenants_tables_are_files_of_what_the_reader_may_see(cast: Cast, browser: SignIn) -> None:
    tokens.create(principal=SYSTEM, name="secret-service", tenant=cast.acme)
    give(cast.acme, core_percent=400)
    members = json.loads(browser("vera").get("/tenants/acme/?format=json&table=members").content)
    assert {"person": "anna", "role": "admin"} in members
    quotas_ = json.loads(browser("vera").get("/tenants/acme/?format=json&table=quotas").content)
    assert [(row["resource"], row["hard"]) for row in quotas_] == [("core_percent", 400)]
    assert "secret-service" not in browser("vera").get("/tenants/acme/?format=csv&table=tokens").content.decode()
    assert "secret-service" in browser("anna").get("/tenants/acme/?format=csv&table=tokens").content.decode()


def test_a_quotas_chart_has_its_changes_and_its_limit(cast: Cast, machine: Machine, browser: SignIn) -> None:
    quota = ResourceQuota.objects.get(tenant=cast.acme, resource="core_percent", pool=None)
    quotas.change_quota(principal=SYSTEM, quota=quota, hard=300)
    placed(cast, machine, core_request=30)
    page = browser("vera").get(f"/quotas/{quota.pk}/").content.decode()
    found = re.search(r'<script id="series" type="application/json">(.*?)</script>', page)
    assert found is not None
    (series,) = json.loads(found[1])["series"]
    assert series["hard"][-2:] == [300, 300]
    assert series["used"][-3:] == [0, 30, 30]


def asked(cast: Cast) -> QuotaRequest:
    give(cast.acme, core_percent=100)
    return requests.ask(
        principal=SYSTEM, tenant=cast.acme, pool=None, resource="core_percent", amount=50, reason="a course"
    )


def test_a_request_is_asked_for_and_approved(cast: Cast, browser: SignIn) -> None:
    give(cast.acme, core_percent=100)
    posted = {"tenant": "acme", "resource": "core_percent", "pool": "", "amount": "50", "reason": "a course"}
    assert browser("anna").post("/requests/new/", posted).status_code == 302
    row = QuotaRequest.objects.get()
    olga = browser("olga")
    assert "a course" in text(olga.get("/requests/"))
    assert "acme requests 50 % more core" in text(olga.get("/"))
    assert "Nothing is changed yet" in text(olga.get(f"/requests/{row.uid}/"))
    olga.post(f"/requests/{row.uid}/", {"act": "approve", "words": "", "version": row.version})
    assert ResourceQuota.objects.get(tenant=cast.acme, resource="core_percent").hard == 150
    assert "Approved" in text(browser("vera").get(f"/requests/{row.uid}/"))
    assert json.loads(browser("gus").get("/requests/?state=all&format=json").content) == []


def test_a_budget_is_asked_for_from_the_page_of_limits_and_approved(cast: Cast, browser: SignIn) -> None:
    anna = browser("anna")
    page = text(anna.get("/tenants/acme/limits/"))
    assert 'href="/requests/new/?tenant=acme&amp;resource=gpu_hours&amp;period=month"' in page
    form = text(anna.get("/requests/new/?tenant=acme&resource=gpu_hours&period=month"))
    assert '<option value="gpu_hours" selected>' in form
    assert '<option value="month" selected>' in form
    posted = {"tenant": "acme", "resource": "gpu_hours", "pool": "", "amount": "1500", "reason": "a course"}
    for wrong, words in (
        ({}, "Choose the period of the budget."),
        ({"period": "year"}, "Select a valid choice."),
        ({"period": "month", "pool": "default"}, "A budget covers all pools together."),
        ({"period": "month", "resource": "core_percent"}, "Only GPU-hours have a period."),
        ({"period": "month", "amount": str(10**10)}, "more than 1000000000 GPU-hours"),
    ):
        answer = anna.post("/requests/new/", posted | wrong)
        assert (answer.status_code, words in text(answer)) == (422, True), wrong
    assert not QuotaRequest.objects.exists()
    assert anna.post("/requests/new/", posted | {"period": "month"}).status_code == 302
    row = QuotaRequest.objects.get()
    olga = browser("olga")
    assert "acme requests 1500 more GPU-hours" in text(olga.get("/"))
    assert "+1500 GPU-hours each month" in text(olga.get("/requests/"))
    page = text(olga.get(f"/requests/{row.uid}/"))
    assert "Each month: a budget of 1,500 GPU-hours; 0.00 are spent." in page
    assert "It is the tenant’s first budget of this period" in page
    assert "a budget of" not in text(anna.get(f"/requests/{row.uid}/"))
    olga.post(f"/requests/{row.uid}/", {"act": "approve", "words": "", "version": row.version})
    assert Budget.objects.get(tenant=cast.acme).gpu_hours == 1500
    # A member reads the budget; an admin also asks for more of it.
    more = "tenant=acme&amp;resource=gpu_hours&amp;period=month"
    assert text(anna.get("/tenants/acme/limits/")).count(more) == 2
    assert more not in text(browser("vera").get("/tenants/acme/limits/"))
    rows = json.loads(anna.get("/requests/?state=all&format=json").content)
    assert [(row["resource"], row["period"]) for row in rows] == [("gpu_hours", "month")]


def test_a_refusal_needs_words_and_an_offer_an_amount(cast: Cast, browser: SignIn) -> None:
    row, olga = asked(cast), browser("olga")
    for act, words in (("deny", "Enter a reason."), ("counter", "Enter an amount.")):
        answer = olga.post(f"/requests/{row.uid}/", {"act": act, "words": "", "version": row.version})
        assert (answer.status_code, words in text(answer)) == (422, True)
    olga.post(f"/requests/{row.uid}/", {"act": "counter", "amount": "20", "version": row.version})
    row.refresh_from_db()
    anna = browser("anna")
    assert "was offered something else" in text(anna.get("/"))
    assert anna.post(f"/requests/{row.uid}/", {"act": "deny", "words": "x"}).status_code == 403
    anna.post(f"/requests/{row.uid}/", {"act": "accept", "version": row.version})
    assert ResourceQuota.objects.get(tenant=cast.acme, resource="core_percent").hard == 120


def test_what_is_offered_instead_is_not_approved_as_asked(cast: Cast, browser: SignIn) -> None:
    """Enter in the field of the amount presses the form's first button."""
    row = asked(cast)
    answer = browser("olga").post(f"/requests/{row.uid}/", {"act": "approve", "amount": "20", "version": row.version})
    assert (answer.status_code, "Approving grants what was asked for" in text(answer)) == (422, True)
    row.refresh_from_db()
    assert row.state == "open"


def test_an_offer_that_cannot_be_accepted_any_more_says_so(cast: Cast, browser: SignIn) -> None:
    row = asked(cast)
    requests.counter(principal=SYSTEM, request=row, amount=10, until=timezone.now() + timedelta(hours=1))
    QuotaRequest.objects.filter(pk=row.pk).update(offered_until=timezone.now() - timedelta(hours=1))
    row.refresh_from_db()
    answer = browser("anna").post(f"/requests/{row.uid}/", {"act": "accept", "version": row.version}, follow=True)
    assert "This moment has passed" in text(answer)
    row.refresh_from_db()
    assert row.state == "countered"


def test_who_answers_second_is_told_and_changes_nothing(cast: Cast, browser: SignIn) -> None:
    row = asked(cast)
    requests.counter(principal=SYSTEM, request=row, amount=10)
    posted = {"act": "deny", "words": "no", "version": row.version}
    answer = browser("olga").post(f"/requests/{row.uid}/", posted, follow=True)
    assert "Somebody answered it while" in text(answer)
    row.refresh_from_db()
    assert row.state == "countered"


def test_who_only_reads_asks_for_nothing(cast: Cast, browser: SignIn) -> None:
    row = asked(cast)
    assert browser("vera").get("/requests/new/").status_code == 403
    assert browser("gus").get(f"/requests/{row.uid}/").status_code == 404
    assert browser("vera").post(f"/requests/{row.uid}/", {"act": "withdraw"}).status_code == 403
    assert "Withdraw" not in text(browser("vera").get(f"/requests/{row.uid}/"))


def test_a_members_request_goes_to_the_tenants_admins(cast: Cast, browser: SignIn) -> None:
    give(cast.acme, core_percent=100)
    posted = {"tenant": "acme", "resource": "core_percent", "pool": "", "amount": "50", "reason": "a course"}
    max_, anna, olga = browser("max"), browser("anna"), browser("olga")
    assert "is sent to the admins of acme" in text(max_.post("/requests/new/", posted, follow=True))
    row = QuotaRequest.objects.get()
    path = f"/requests/{row.uid}/"
    assert "a course" in text(olga.get("/requests/"))
    assert "requests 50 % more core" not in text(olga.get("/"))
    assert "A member of acme requests 50 % more core" in text(anna.get("/"))
    assert "Forward to operators" not in text(max_.get(path))
    assert max_.post(path, {"act": "forward", "version": row.version}).status_code == 403
    refused = anna.post(path, {"act": "deny", "words": "", "version": row.version})
    assert (refused.status_code, "Enter a reason." in text(refused)) == (422, True)
    assert anna.post(path, {"act": "approve", "version": row.version}).status_code == 403
    assert QuotaRequest.objects.get().state == "requested"
    anna.post(path, {"act": "forward", "version": row.version})
    assert QuotaRequest.objects.get().state == "open"
    assert "acme requests 50 % more core" in text(olga.get("/"))
    assert "Withdraw" in text(max_.get(path))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("amount", "many", "Enter a whole number."), ("amount", "0", "Must be at least 1."), ("amount", "", "required"),
        ("amount", str(2**53), "Must be at most"), ("tenant", "globex", "valid choice"), ("reason", "", "required"),
        ("until", "yesterday", "valid date"),
    ],
)  # fmt: skip
def test_a_wrong_request_says_so_at_its_field(cast: Cast, browser: SignIn, field: str, value: str, words: str) -> None:
    give(cast.acme, core_percent=100)
    posted = {"tenant": "acme", "resource": "core_percent", "pool": "", "amount": "50", "reason": "a course"}
    answer = browser("max").post("/requests/new/", posted | {field: value})
    assert answer.status_code == 422
    assert words in " ".join(answer.context["form"].errors[field])
    assert "a course" in text(answer) or field == "reason"
    assert not QuotaRequest.objects.exists()


def test_policies_of_all_pools_lead_to_their_forms(cast: Cast, browser: SignIn) -> None:
    page = text(browser("olga").get("/policies/"))
    assert 'href="/pools/default/"' in page
    rows = json.loads(browser("olga").get("/policies/?format=json").content)
    assert rows[0]["pool"] == "default"
    assert browser("anna").get("/policies/").status_code == 403


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "Firefox 140 on Linux"),
        (
            "Mozilla/5.0 (Windows NT 10.0; Win64) Chrome/141.0 Safari/537.36 Edg/141.0",
            "Edge 141 on Windows",
        ),
        (
            "Mozilla/5.0 (iPhone; like Mac OS X) Version/19.0 Mobile/15E148 Safari/604.1",
            "Safari 19 on iPhone",
        ),
        (
            "Mozilla/5.0 (Linux; Android 15) Chrome/141.0.0.0 Mobile Safari/537.36",
            "Chrome 141 on Android",
        ),
        ("curl/8.9", "curl/8.9"),
        ("x" * 200, "x" * 59 + "…"),
        ("", ""),
    ],
)
def test_a_session_names_its_browser(header: str, name: str) -> None:
    assert name_browser(header) == name
