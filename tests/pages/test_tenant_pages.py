"""Pages of tenants, quotas, the audit log and rounds."""

import csv
import io
import json
import re
from typing import Any

import pytest
from django.test import Client

from apps.console.shell import export
from apps.quotas.models import ResourceQuota, Tenant
from apps.quotas.principals import SYSTEM
from apps.quotas.services import quotas, tenants
from apps.quotas.services.names import NameTaken
from apps.scheduling.models import Round
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Cast, Machine, ask, give, placed
from tests.pages.conftest import SignIn

# No limit of what is borrowed and lent.
ALL = {"borrowing_limit_unlimited": "on", "lending_limit_unlimited": "on"}


def text(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, answer.status_code
    return " ".join(answer.content.decode().split())


def body(answer: Any) -> str:
    return b"".join(answer).decode()


def quota_of(cast: Cast, resource: str = "core_percent") -> ResourceQuota:
    return ResourceQuota.objects.get(tenant=cast.acme, resource=resource, pool=None)


def test_the_fullest_tenant_comes_first_and_foreign_ones_do_not_exist(cast: Cast, browser: SignIn) -> None:
    give(cast.acme, core_percent=100, memory_mib=1024)
    tenants.create_tenant(principal=SYSTEM, slug="zebra", name="Zebra")
    ResourceQuota.objects.filter(tenant=cast.acme, resource="core_percent").update(used=90)
    page = text(browser("olga"), "/tenants/")
    assert page.index("acme") < page.index("globex") < page.index("zebra")
    assert "none yet: claims are refused" in page
    assert "zebra" not in text(browser("olga"), "/tenants/?q=acm")
    own = text(browser("gus"), "/tenants/")
    assert "acme" not in own
    assert browser("gus").get("/tenants/acme/").status_code == 404
    assert browser("gus").get(f"/quotas/{quota_of(cast).pk}/").status_code == 404


def test_a_table_is_a_file_too_and_runs_nothing_in_a_spreadsheet(cast: Cast, browser: SignIn) -> None:
    tenants.change_tenant(principal=SYSTEM, tenant=cast.acme, name="=cmd()")
    rows = list(csv.DictReader(io.StringIO(body(browser("olga").get("/tenants/?format=csv")))))
    assert {row["tenant"]: row["name"] for row in rows}["acme"] == "'=cmd()"
    found = json.loads(body(browser("olga").get("/tenants/?format=json")))
    assert {row["tenant"]: row["name"] for row in found}["acme"] == "=cmd()"
    assert json.loads(body(browser("olga").get("/tenants/?format=json&q=nothing-like-it"))) == []


def test_a_file_is_made_in_its_own_request_and_says_where_it_ends(
    cast: Cast, browser: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = browser("olga").get("/audit/?format=json")
    # A streamed answer would be read in the thread of the agents' frames.
    assert not answer.streaming
    assert answer["Content-Disposition"] == 'attachment; filename="audit.json"'
    assert len(json.loads(body(answer))) > 2
    monkeypatch.setattr(export, "MOST_ROWS", 2)
    answer = browser("olga").get("/audit/?format=json")
    assert answer["Content-Disposition"] == 'attachment; filename="audit-first-2.json"'
    assert len(json.loads(body(answer))) == 2


def test_a_tenants_page_shows_quotas_people_and_tokens(cast: Cast, browser: SignIn) -> None:
    give(cast.acme, core_percent=400)
    page = text(browser("vera"), "/tenants/acme/")
    for words in ('0 % <span class="muted">of 400 %</span>', "anna", "Viewer", "History"):
        assert words in page
    assert "Create quota" not in page
    assert "Who changed what" not in page
    living = browser("olga").get("/tenants/acme/", headers={"HX-Request": "true"}).content.decode()
    assert "<html" not in living
    assert "Create quota" in living


def test_a_tenant_is_made_and_a_taken_name_is_said_so(cast: Cast, browser: SignIn) -> None:
    olga = browser("olga")
    values = {"slug": "new", "name": "New", "weight": "2", "cohort": ""}
    assert olga.post("/new-tenant/", values)["Location"] == "/tenants/new/"
    assert Tenant.objects.get(slug="new").cohort is None
    again = olga.post("/new-tenant/", values)
    assert again.status_code == 422
    assert "There is a tenant new already" in again.content.decode()
    assert olga.post("/new-tenant/", {**values, "slug": "No Good"}).status_code == 422
    assert browser("anna").post("/new-tenant/", {**values, "slug": "mine"}).status_code == 403


def test_a_tenant_is_made_with_its_first_quotas_or_not_at_all(cast: Cast, browser: SignIn) -> None:
    olga = browser("olga")
    values = {"slug": "new", "name": "New", "weight": "1", "core_percent": "150", "memory_mib": "24"}
    assert olga.post("/new-tenant/", {**values, "memory_mib": "some"}).status_code == 422
    assert not Tenant.objects.filter(slug="new").exists()
    assert olga.post("/new-tenant/", values).status_code == 302
    found = ResourceQuota.objects.filter(tenant__slug="new", pool=None).values_list("resource", "hard")
    assert dict(found) == {"core_percent": 150, "memory_mib": 24576}
    page = olga.get("/tenants/new/").content.decode()
    assert "/new-invitation/?tenant=new" in page
    assert "/tenants/new/limits/#budgets-title" in page
    assert "/new-invitation/" not in browser("max").get("/tenants/acme/").content.decode()


def test_a_refused_quota_leaves_no_tenant(cast: Cast, browser: SignIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise NameTaken("A quota of this resource is there already.")

    monkeypatch.setattr(quotas, "create_quota", refuse)
    answer = browser("olga").post("/new-tenant/", {"slug": "new", "name": "New", "weight": "1", "core_percent": "150"})
    assert (answer.status_code, "is there already" in answer.content.decode()) == (422, True)
    assert not Tenant.objects.filter(slug="new").exists()


def test_a_quota_is_previewed_and_then_changed(cast: Cast, machine: Machine, browser: SignIn) -> None:
    quotas.change_quota(principal=SYSTEM, quota=quota_of(cast), hard=50)
    claim = ask(cast, core_request=100, when_over_quota="wait")
    quota, olga = quota_of(cast), browser("olga")
    posted = {"hard": "100", **ALL, "version": quota.version}
    preview = " ".join(olga.post(f"/quotas/{quota.pk}/", {**posted, "act": "preview"}).content.decode().split())
    assert f'<a href="/claims/{claim.uid}/">{claim.name}</a> <span class="muted">of acme</span> could start.' in preview
    quota.refresh_from_db()
    assert quota.hard == 50
    assert olga.post(f"/quotas/{quota.pk}/", {**posted, "act": "apply"}).status_code == 302
    quota.refresh_from_db()
    assert quota.hard == 100
    assert "could start" not in text(olga, f"/quotas/{quota.pk}/")


def test_who_is_second_is_told_who_was_first_and_loses_nothing(cast: Cast, browser: SignIn) -> None:
    give(cast.acme, core_percent=100)
    quota, olga = quota_of(cast), browser("olga")
    posted = {"hard": "300", **ALL, "version": quota.version, "act": "apply"}
    quotas.change_quota(principal=SYSTEM, quota=quota, hard=200)
    page = " ".join(olga.post(f"/quotas/{quota.pk}/", posted).content.decode().split())
    assert re.search(r"Changed by system at \d\d:\d\d:\d\d", page)
    assert 'value="300"' in page
    assert quota_of(cast).hard == 200
    version = re.search(r'name="version" value="(\d+)"', page)
    assert version is not None
    assert olga.post(f"/quotas/{quota.pk}/", {**posted, "version": version[1]}).status_code == 302
    assert quota_of(cast).hard == 300


def test_nobody_but_an_operator_changes_a_quota(cast: Cast, browser: SignIn) -> None:
    give(cast.acme, core_percent=100)
    quota = quota_of(cast)
    assert "Apply" not in text(browser("anna"), f"/quotas/{quota.pk}/")
    posted = {"hard": "300", "version": quota.version, "act": "apply"}
    assert browser("anna").post(f"/quotas/{quota.pk}/", posted).status_code == 403
    assert browser("anna").post(f"/quotas/{quota.pk}/", {**posted, "act": "preview"}).status_code == 403
    assert browser("anna").post("/tenants/acme/quotas/new/", posted).status_code == 403
    assert quota_of(cast).hard == 100


def test_a_quota_is_given_after_a_preview(cast: Cast, browser: SignIn) -> None:
    olga = browser("olga")
    posted = {"resource": "gpus", "pool": "", "hard": "2", **ALL}
    preview = olga.post("/tenants/acme/quotas/new/", {**posted, "act": "preview"})
    assert "Nothing is changed yet" in preview.content.decode()
    assert not ResourceQuota.objects.filter(tenant=cast.acme, resource="gpus").exists()
    made = olga.post("/tenants/acme/quotas/new/", {**posted, "act": "apply"})
    assert made["Location"] == f"/quotas/{ResourceQuota.objects.get(tenant=cast.acme, resource='gpus').pk}/"
    assert olga.post("/tenants/acme/quotas/new/", {**posted, "act": "apply"}).status_code == 422


def test_the_ledger_names_the_claims_and_is_a_file(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, _ = placed(cast, machine, name="train-9", core_request=30)
    path = f"/quotas/{quota_of(cast).pk}/"
    page = text(browser("vera"), path)
    assert f'<a href="/claims/{claim.uid}/">train-9</a>' in page
    assert '<td class="num">+30 %</td>' in page
    rows = list(csv.DictReader(io.StringIO(body(browser("vera").get(f"{path}?format=csv")))))
    assert [row["amount"] for row in rows if row["claim_uid"] == str(claim.uid)] == ["30"]


def test_the_audit_log_says_who_changed_what_and_hides_the_rest(cast: Cast, browser: SignIn) -> None:
    give(cast.acme, core_percent=100)
    quotas.change_quota(principal=SYSTEM, quota=quota_of(cast), hard=200)
    page = text(browser("olga"), "/audit/?action=quota.set")
    assert "<b>hard</b> 100 → 200" in page
    assert "<code>tenant.create" not in page
    assert "acme" in text(browser("anna"), "/audit/")
    assert "<code>quota.set" not in text(browser("gus"), "/audit/")
    assert "Nothing that you may see" in text(browser("vera"), "/audit/")
    rows = json.loads(body(browser("olga").get("/audit/?format=json&action=quota.set")))
    assert [(row["before"]["hard"], row["after"]["hard"], row["tenant"]) for row in rows] == [(100, 200, "acme")]
    # A tenant that the reader may not see is an unknown one: the file would look complete without the filter.
    assert browser("gus").get("/audit/?format=json&tenant=acme&action=quota").status_code == 422


@pytest.mark.parametrize(
    "path",
    ["/audit/?since=x&until=y&tenant=nobody&before=z", "/rounds/?pool=none&after=-1", "/claims/?before=" + "9" * 40],
)
def test_filters_that_mean_nothing_narrow_nothing(cast: Cast, browser: SignIn, path: str) -> None:
    assert browser("olga").get(path).status_code == 200


def test_a_round_shows_what_it_decided_and_why(cast: Cast, machine: Machine, browser: SignIn) -> None:
    ask(cast, name="fits", core_request=10)
    ask(cast, name="too-large", core_request=100, gpu_count=4)
    run_round(cast.pool)
    olga = browser("olga")
    pages = [text(olga, f"/rounds/{one.pk}/") for one in Round.objects.all()]
    assert any("fits" in page and "gpu1 <span" in page for page in pages)
    assert any("too-large" in page and "fit on one node" in page for page in pages)
    assert f"/rounds/{Round.objects.all()[0].pk}/" in text(olga, "/rounds/")
    assert olga.get("/rounds/999999/").status_code == 404
    assert browser("anna").get("/rounds/").status_code == 403
