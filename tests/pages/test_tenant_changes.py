"""Changing and removing tenants and quotas: previews and permissions."""

import re

import pytest
from django.test import Client

from apps.console.tenants import removals
from apps.quotas.models import Pool, ResourceQuota, Tenant
from apps.quotas.principals import SYSTEM
from apps.quotas.services import quotas, tenants
from tests.cast import Cast, Machine, ask, give, placed
from tests.pages.conftest import SignIn
from tests.pages.test_limits_page import posted, text

CHANGE = "/tenants/acme/change/"
SAID = {"name": "Acme", "weight": "1", "cohort": ""}


def hidden_version(page: str) -> str:
    found = re.search(r'name="version" value="(\d+)"', page)
    assert found is not None
    return found[1]


def test_a_tenant_is_changed_after_a_preview(cast: Cast, browser: SignIn) -> None:
    olga, version = browser("olga"), cast.acme.version
    page = posted(olga, CHANGE, 200, act="preview", version=version, **{**SAID, "weight": "3"})
    assert "its part of what is scarce is 75 % instead of 50 %" in page
    assert "No other claim starts" not in page
    cast.acme.refresh_from_db()
    assert cast.acme.weight == 1
    posted(olga, CHANGE, act="apply", version=version, **{**SAID, "name": "Acme Labs", "weight": "3"})
    cast.acme.refresh_from_db()
    assert (cast.acme.name, cast.acme.weight, cast.acme.cohort) == ("Acme Labs", 3, None)
    page = posted(olga, CHANGE, 200, act="apply", version=version, **SAID)
    assert "Changed by user:olga at" in page
    assert "It is now: Acme Labs, weight 3, no cohort." in page
    posted(olga, CHANGE, act="apply", version=hidden_version(page), **SAID)


def test_joining_a_cohort_says_with_whom_and_what_could_then_start(
    cast: Cast, machine: Machine, browser: SignIn
) -> None:
    lender = tenants.create_tenant(principal=SYSTEM, slug="lender", name="Lender", cohort="labs")
    give(lender, core_percent=100)
    ResourceQuota.objects.filter(tenant=cast.acme, resource="core_percent").delete()
    give(cast.acme, core_percent=0)
    claim = ask(cast, core_request=30, when_over_quota="wait")
    page = posted(browser("olga"), CHANGE, 200, act="preview", **{**SAID, "cohort": "labs"})
    assert "It joins cohort labs (lender)" in page
    assert f'<a href="/claims/{claim.uid}/">train</a> <span class="muted">of acme</span> could start.' in page
    cast.acme.refresh_from_db()
    assert cast.acme.cohort is None


@pytest.mark.parametrize("name", ["anna", "vera"])
def test_only_operators_change_and_remove(cast: Cast, browser: SignIn, name: str) -> None:
    quota, reader = give(cast.acme, vgpus=2)["vgpus"], browser(name)
    for path in (CHANGE, "/tenants/acme/remove/", f"/quotas/{quota.pk}/remove/"):
        assert reader.get(path).status_code == 403, path
        posted(reader, path, 403, version=1, **SAID)
    for path in ("/tenants/acme/", f"/quotas/{quota.pk}/"):
        assert not re.search(r'href="[^"]*/(change|remove)/"', text(reader, path))
        assert re.search(r'href="[^"]*/(change|remove)/"', text(browser("olga"), path))


def test_an_unused_tenant_is_removed_with_what_goes_along(cast: Cast, browser: SignIn) -> None:
    olga, path = browser("olga"), "/tenants/acme/remove/"
    page = text(olga, path)
    assert "its name is free again" in page
    assert "3 memberships end." in page
    version = cast.acme.version
    tenants.change_tenant(principal=SYSTEM, tenant=cast.acme, name="Other")
    assert "Somebody changed it" in posted(olga, path, 409, version=version)
    posted(olga, path, version=version + 1)
    assert not Tenant.objects.filter(slug="acme").exists()


def test_a_tenant_with_a_history_is_kept_and_says_why(cast: Cast, browser: SignIn) -> None:
    give(cast.acme, vgpus=2)
    olga, path = browser("olga"), "/tenants/acme/remove/"
    page = text(olga, path)
    assert "it has a history and is kept (changes of its quotas)" in page
    assert 'class="btn btn-danger" disabled' in page
    assert "Still in use." in posted(olga, path, 409, version=cast.acme.version)
    assert Tenant.objects.filter(slug="acme").exists()


def test_a_budget_is_to_be_removed_first(cast: Cast, browser: SignIn) -> None:
    assert cast.olga.post("budgets/", {"tenant": "acme", "period": "month", "gpu_hours": "1"}).status == 201
    assert "Remove these first: budgets." in text(browser("olga"), "/tenants/acme/remove/")


def test_all_that_keeps_a_tenant_has_a_word(db: None) -> None:
    assert removals.protecting_relations() == removals.HISTORY.keys() | removals.FIRST.keys()


def removal(client: Client, quota: ResourceQuota) -> str:
    return text(client, f"/quotas/{quota.pk}/remove/")


def test_a_quota_that_is_used_says_by_whom(cast: Cast, machine: Machine, browser: SignIn) -> None:
    quota = give(cast.acme, vgpus=4)["vgpus"]
    claim, _ = placed(cast, machine)
    olga = browser("olga")
    page = removal(olga, quota)
    assert f'<a href="/claims/{claim.uid}/">train</a>' in page
    assert 'class="btn btn-danger" disabled' in page
    quota.refresh_from_db()
    assert "1 of vgpus are in use" in posted(olga, f"/quotas/{quota.pk}/remove/", 409, version=quota.version)


def test_a_quota_is_removed_after_what_it_would_do_is_said(cast: Cast, machine: Machine, browser: SignIn) -> None:
    quota, olga = give(cast.acme, vgpus=0)["vgpus"], browser("olga")
    claim = ask(cast, name="next", when_over_quota="wait")
    page = removal(olga, quota)
    assert "not limited separately" in page
    assert f'<a href="/claims/{claim.uid}/">next</a> <span class="muted">of acme</span> could start.' in page
    assert ResourceQuota.objects.filter(pk=quota.pk).exists()
    assert "Somebody changed it" in posted(olga, f"/quotas/{quota.pk}/remove/", 409, version=quota.version + 1)
    posted(olga, f"/quotas/{quota.pk}/remove/", version=quota.version)
    assert not ResourceQuota.objects.filter(pk=quota.pk).exists()


def test_what_bounds_afterwards_is_said_as_it_is(cast: Cast, browser: SignIn, pool: Pool) -> None:
    olga = browser("olga")
    everywhere, inside = give(cast.acme, core_percent=100), give(cast.acme, pool=pool, core_percent=50, vgpus=2)
    assert "bounded by the quota for all pools alone" in removal(olga, inside["core_percent"])
    assert "only in pools for which it has a quota" in removal(olga, everywhere["core_percent"])
    memory = give(cast.acme, memory_mib=1024)["memory_mib"]
    assert "core and memory need a quota each" in removal(olga, memory)
    assert "not limited separately" in removal(olga, inside["vgpus"])
    quotas.delete_quota(principal=SYSTEM, quota=everywhere["core_percent"])
    assert "can hold nothing in pool side" in removal(olga, inside["core_percent"])


@pytest.fixture
def pool(cast: Cast) -> Pool:
    return tenants.create_pool(principal=SYSTEM, name="side")
