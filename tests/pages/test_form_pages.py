"""Forms: amounts with units, explicit *Unlimited*, bounds, presets, secrets shown once, times in the reader's zone."""

from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone

from apps.console.shell.amounts import memory_text, parse_memory
from apps.quotas.models import LimitRange, MemberLimit, QuotaRequest, ResourceQuota, Tenant, Token, User
from apps.quotas.models.resource import MOST_AMOUNT
from apps.scheduling.models import Claim
from tests.cast import Cast, Machine, give, placed
from tests.pages.conftest import SignIn

QUOTA = {"resource": "memory_mib", "pool": "", "borrowing_limit_unlimited": "on", "lending_limit_unlimited": "on"}
LIMIT = {"user": "max", "resource": "memory_mib"}
RANGE = {"field": "memory_mib", "pool": "", "minimum": "1 GiB", "default_unlimited": "on"}
# Path, valid other values, field of the amount, model and its attribute, path of a row.
FORMS = [
    ("/tenants/acme/quotas/new/", QUOTA, "hard", ResourceQuota, "hard", "/quotas/"),
    ("/tenants/acme/member-limits/new/", LIMIT, "most", MemberLimit, "hard", "/member-limits/"),
    ("/tenants/acme/limit-ranges/new/", RANGE, "maximum", LimitRange, "maximum", "/limit-ranges/"),
]


def text(answer: Any) -> str:
    return " ".join(unescape(answer.content.decode()).split())


@pytest.mark.parametrize("of", FORMS)
def test_no_limit_is_said_explicitly(cast: Cast, browser: SignIn, of: tuple[Any, ...]) -> None:
    olga, (path, values, field, model, attribute, rows) = browser("olga"), of
    nothing, both = olga.post(path, values), olga.post(path, values | {field: "4", f"{field}_unlimited": "on"})
    for answer, words in ((nothing, "Enter an amount, or choose"), (both, "not both")):
        assert answer.status_code == 422
        assert words in " ".join(answer.context["form"].errors[field])
    assert 'value="4"' in text(both)
    assert not model.objects.exists()
    assert olga.post(path, values | {f"{field}_unlimited": "on"}).status_code == 302
    row = model.objects.get()
    assert getattr(row, attribute) is None
    assert f'name="{field}_unlimited" checked' in text(olga.get(f"{rows}{row.pk}/"))


@pytest.mark.parametrize("of", FORMS)
def test_memory_is_typed_in_gib(cast: Cast, browser: SignIn, of: tuple[Any, ...]) -> None:
    olga, (path, values, field, model, attribute, _rows) = browser("olga"), of
    for wrong in ("many", "-1", "1.0001 MiB", "4 apples", "9" * 40, "0x10", "1e3"):
        answer = olga.post(path, values | {field: wrong})
        assert (answer.status_code, field in answer.context["form"].errors) == (422, True), wrong
        assert f'value="{wrong}"' in text(answer)
    assert not model.objects.exists()
    assert olga.post(path, values | {field: "1.5"}).status_code == 302
    assert getattr(model.objects.get(), attribute) == 1536


@pytest.mark.parametrize(
    ("typed", "mib"),
    [("16", 16384), ("16 GiB", 16384), ("16g", 16384), ("512 MiB", 512), ("1,5 GiB", 1536), ("2 TiB", 2**21)],
)  # fmt: skip
def test_memory_is_read_with_its_unit(typed: str, mib: int) -> None:
    assert parse_memory(typed) == mib
    assert parse_memory(memory_text(mib)) == mib


@pytest.mark.parametrize("mib", [0, 1, 1023, 1024, 1025, 1536, 81_559, MOST_AMOUNT])
def test_what_a_form_shows_it_reads(mib: int) -> None:
    assert parse_memory(memory_text(mib)) == mib


def test_forms_and_api_have_one_bound(cast: Cast, browser: SignIn) -> None:
    path, values = "/tenants/acme/quotas/new/", QUOTA | {"resource": "vgpus"}
    body = {"tenant": "acme", "resource": "gpus"}
    refused = browser("olga").post(path, values | {"hard": str(MOST_AMOUNT + 1)})
    assert (refused.status_code, cast.olga.post("quotas/", body | {"hard": MOST_AMOUNT + 1}).status) == (422, 400)
    assert browser("olga").post(path, values | {"hard": str(MOST_AMOUNT)}).status_code == 302
    assert cast.olga.post("quotas/", body | {"hard": MOST_AMOUNT}).status == 201


def test_a_name_is_at_most_63_long(cast: Cast, machine: Machine, browser: SignIn) -> None:
    long, olga, max_ = "n" * 64, browser("olga"), browser("max")
    claim = {"tenant": "acme", "pool": "default", "gpu_count": "1", "core_request": "10", "memory_mib": "1"}
    token = {"name": long, "may": "read", "days": "7", "role": "member", "tenant": "acme"}
    answers = [
        max_.post("/claims/new/", claim | {"name": long}),
        olga.post("/new-tenant/", {"slug": "new", "name": long, "weight": "1"}),
        browser("anna").post("/new-token/", token),
    ]
    for answer in answers:
        assert (answer.status_code, "name" in answer.context["form"].errors) == (422, True)
    made = {"tenant": "acme", "core_request": 10, "memory_mib": 512, "name": long}
    assert "name" in cast.max.post("claims/", made).body["errors"]
    assert cast.max.post("claims/", made | {"name": long[:63]}).status == 201
    assert not Tenant.objects.filter(slug="new").exists()


def test_a_preset_fills_the_form_of_a_token(cast: Cast, browser: SignIn) -> None:
    anna = browser("anna")
    form = anna.get("/new-token/?tenant=acme&preset=ci").context["form"]
    shown = {name: form[name].value() for name in ("may", "days", "scopes", "tenant")}
    assert shown == {"may": "choose", "days": "90", "scopes": ["claims:read", "claims:write"], "tenant": "acme"}
    page = text(anna.get("/new-token/?tenant=acme"))
    assert 'href="?tenant=acme&preset=ci"' in page
    assert anna.get("/new-token/?preset=nothing").context["form"]["days"].value() is None
    assert anna.post("/new-token/", shown | {"name": "ci", "role": "member"}).status_code == 302
    token = Token.objects.get(name="ci")
    assert sorted(token.scopes) == ["claims:read", "claims:write"]
    assert token.expires_at is not None
    assert abs(token.expires_at - timezone.now() - timedelta(days=90)) < timedelta(minutes=1)


def test_a_secret_is_shown_once_after_a_redirect(cast: Cast, browser: SignIn) -> None:
    anna = browser("anna")
    posted = {"name": "ci", "may": "read", "days": "7", "role": "member", "tenant": "acme"}
    made = anna.post("/new-token/", posted)
    assert made.status_code == 302
    token = Token.objects.get(name="ci")
    first, again = anna.get(made["Location"]), anna.get(made["Location"], follow=True)
    assert f"{token.key}." in text(first)
    assert "no-store" in first["Cache-Control"]
    assert f"{token.key}." not in text(again)
    assert "It was shown once, and cannot be shown again." in text(again)
    assert "shown-once" not in anna.session


def test_times_are_in_the_readers_zone(cast: Cast, machine: Machine, browser: SignIn) -> None:
    User.objects.filter(username="max").update(time_zone="Asia/Shanghai")
    max_ = browser("max")
    values = {
        "tenant": "acme",
        "pool": "default",
        "gpu_count": "1",
        "core_request": "10",
        "memory_mib": "1",
        "name": "x",
    }
    for path in ("/claims/new/", "/reservations/new/"):
        assert "Time zone: Asia/Shanghai." in text(max_.get(path)), path
        assert "Time zone: Asia/Shanghai." not in text(browser("anna").get(path)), path
    typed = (datetime.now(ZoneInfo("Asia/Shanghai")) + timedelta(days=1)).replace(second=0, microsecond=0)
    assert max_.post("/claims/new/", values | {"start_at": f"{typed:%Y-%m-%dT%H:%M}"}).status_code == 302
    assert Claim.objects.get().start_at == typed.astimezone(UTC)


def test_a_pools_defaults_are_placeholders_and_what_is_seldom_set_is_folded(cast: Cast, browser: SignIn) -> None:
    page = text(browser("olga").get("/pools/default/"))
    for words in ("<legend>Basics</legend>", "<summary>Advanced: rebalancing</summary>", 'placeholder="1800"'):
        assert words in page
    assert '<details class="more" open>' not in page
    form = browser("olga").get("/pools/default/").context["form"]
    assert {"sharing_policy", "window_seconds", "failover_after_seconds"} <= set(form.fields)


def test_a_quota_is_asked_for_in_gib(cast: Cast, browser: SignIn) -> None:
    give(cast.acme, memory_mib=1024)
    posted = {"tenant": "acme", "resource": "memory_mib", "pool": "", "amount": "2", "reason": "a larger model"}
    assert browser("anna").post("/requests/new/", posted).status_code == 302
    assert cast.anna.get("quota-requests/").body["results"][0]["amount"] == 2048


# The pages that had a form of their own: each has the one form page, its fields and its errors.
@pytest.mark.parametrize(
    "form",
    [
        ("/new-cluster/", {"name": "n" * 64, "pool": "default", "placement": "gpucloud"}, "name"),
        ("/nodes/gpu1/drain/", {"grace_seconds": str(7 * 86_400 + 1)}, "grace_seconds"),
        ("/nodes/gpu1/settings/", {"pool": "none"}, "pool"),
        ("/prices/", {"gpu_model": "none", "valid_from": "2027-01-01", "per_gpu_hour": "-1"}, "per_gpu_hour"),
    ],
)
def test_every_form_shows_its_error_at_the_field(
    cast: Cast, machine: Machine, browser: SignIn, form: tuple[str, dict[str, str], str]
) -> None:
    olga, (path, wrong, field) = browser("olga"), form
    assert 'class="fields"' in text(olga.get(path))
    answer = olga.post(path, wrong)
    assert (answer.status_code, field in answer.context["form"].errors) == (422, True)
    assert "forms/form.html" in [one.name for one in answer.templates]
    assert f'id="id_{field}_error"' in text(answer)


def test_an_answer_that_came_second_is_not_given(cast: Cast, browser: SignIn) -> None:
    give(cast.acme, core_percent=100)
    asked = {"tenant": "acme", "resource": "core_percent", "pool": "", "amount": "50", "reason": "a course"}
    assert browser("anna").post("/requests/new/", asked).status_code == 302
    row, olga = QuotaRequest.objects.get(), browser("olga")
    lacking = olga.post(f"/requests/{row.uid}/", {"act": "counter", "version": row.version})
    assert (lacking.status_code, "Enter an amount." in text(lacking)) == (422, True)
    browser("anna").post(f"/requests/{row.uid}/", {"act": "withdraw", "version": row.version})
    answer = olga.post(f"/requests/{row.uid}/", {"act": "approve", "version": row.version}, follow=True)
    assert "Somebody answered it while you had this page open" in text(answer)
    assert ResourceQuota.objects.get(tenant=cast.acme, resource="core_percent").hard == 100


def test_memory_is_bounded_by_the_gpu(cast: Cast, machine: Machine, browser: SignIn) -> None:
    values = {"tenant": "acme", "pool": "default", "gpu_count": "1", "core_request": "10", "name": "x"}
    max_ = browser("max")
    refused = max_.post("/claims/new/", values | {"memory_mib": "25 GiB"})
    assert refused.context["form"].errors["memory_mib"] == ["Must be at most 24 GiB."]
    booked = {"start_at": "2099-01-01T00:00", "end_at": "2099-01-01T01:00", "memory_mib": "2147483647 MiB"}
    refused = max_.post("/reservations/new/", values | booked)
    assert refused.context["form"].errors["memory_mib"] == ["Must be at most 24 GiB."]
    claim, _item = placed(cast, machine)
    refused = max_.post(f"/claims/{claim.uid}/resize/", {"core_request": 10, "core_limit": 10, "memory_mib": "25"})
    assert refused.context["form"].errors["memory_mib"] == ["Must be at most 24 GiB."]
