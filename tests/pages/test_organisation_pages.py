"""The pages of organisations: the tree, one organisation, its quotas, and the place of a tenant."""

from django.test import Client

from apps.quotas.models import Organisation, OrganisationQuota, Tenant
from apps.quotas.principals import SYSTEM
from apps.quotas.services import organisations, tenants
from tests.cast import Cast, Machine, ask, give_plenty, placed
from tests.pages.conftest import SignIn


def text(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, (path, answer.status_code)
    return answer.content.decode()


def test_an_operator_builds_a_tree_and_places_a_tenant(cast: Cast, browser: SignIn) -> None:
    give_plenty(cast.acme)
    olga = browser("olga")
    assert "No organisation yet" in text(olga, "/organisations/")
    for slug, parent in (("university", ""), ("physics", "university")):
        posted = olga.post("/organisations/", {"slug": slug, "name": slug.title(), "parent": parent})
        assert (posted.status_code, posted["Location"]) == (302, f"/organisations/{slug}/")
    assert Organisation.objects.get(slug="physics").parent == Organisation.objects.get(slug="university")
    made = olga.post("/organisations/physics/quotas/new/", {"resource": "core_percent", "pool": "", "hard": "50"})
    assert made.status_code == 302
    moved = olga.post(
        "/tenants/acme/change/",
        {"name": "Acme", "weight": "1", "cohort": "", "organisation": "physics", "version": cast.acme.version},
    )
    assert moved.status_code == 302
    assert Tenant.objects.get(slug="acme").organisation == Organisation.objects.get(slug="physics")
    ask(cast, core_request=20)
    tree = text(olga, "/organisations/")
    assert tree.index(">university<") < tree.index(">physics<")
    assert "/tenants/acme/" in tree
    quota = OrganisationQuota.objects.get()
    assert quota.used == 20
    assert f"/organisation-quotas/{quota.pk}/" in tree
    changed = olga.post(f"/organisation-quotas/{quota.pk}/", {"hard": "80", "version": quota.version})
    assert changed.status_code == 302
    quota.refresh_from_db()
    assert quota.hard == 80


def test_what_is_wrong_is_said_in_the_form(cast: Cast, browser: SignIn) -> None:
    top = organisations.create_organisation(principal=SYSTEM, slug="university", name="University")
    part = organisations.create_organisation(principal=SYSTEM, slug="physics", name="Physics", parent=top)
    olga = browser("olga")
    posted = olga.post(
        "/organisations/university/", {"name": "University", "parent": "physics", "version": top.version}
    )
    assert "choose another parent" in posted.content.decode()
    taken = olga.post("/organisations/", {"slug": "physics", "name": "Physics", "parent": ""})
    assert "There is an organisation physics already" in taken.content.decode()
    tenants.change_tenant(principal=SYSTEM, tenant=cast.acme, organisation=part)
    kept = olga.post("/organisations/physics/remove/", {"version": part.version}, follow=True)
    assert "acme belong to organisation physics" in kept.content.decode()
    tenants.change_tenant(principal=SYSTEM, tenant=cast.acme, organisation=None)
    gone = olga.post("/organisations/physics/remove/", {"version": part.version}, follow=True)
    assert "Organisation physics is removed" in gone.content.decode()
    quota = organisations.create_quota(principal=SYSTEM, organisation=top, pool=None, resource="vgpus", hard=3)
    assert (
        "The quota of university is removed"
        in olga.post(f"/organisation-quotas/{quota.pk}/remove/", follow=True).content.decode()
    )


def test_a_member_sees_its_own_branch_and_changes_nothing(cast: Cast, browser: SignIn) -> None:
    top = organisations.create_organisation(principal=SYSTEM, slug="university", name="University")
    part = organisations.create_organisation(principal=SYSTEM, slug="physics", name="Physics", parent=top)
    organisations.create_organisation(principal=SYSTEM, slug="chemistry", name="Chemistry", parent=top)
    quota = organisations.create_quota(principal=SYSTEM, organisation=top, pool=None, resource="vgpus", hard=3)
    tenants.change_tenant(principal=SYSTEM, tenant=cast.acme, organisation=part)
    anna = browser("anna")
    tree = text(anna, "/organisations/")
    assert ">physics<" in tree
    assert "chemistry" not in tree
    assert "New organisation" not in tree
    assert anna.get("/organisations/chemistry/").status_code == 404
    assert anna.get(f"/organisation-quotas/{quota.pk}/").status_code == 403
    for path in ("/organisations/", "/organisations/physics/", "/organisations/physics/remove/"):
        assert anna.post(path, {"slug": "x", "name": "X"}).status_code == 403


def test_gpu_hours_are_shown_by_organisation(cast: Cast, browser: SignIn) -> None:
    olga = browser("olga")
    assert 'name="organisation"' not in text(olga, "/reports/")
    give_plenty(cast.acme, cast.globex)
    machine = Machine("gpu1", cast.pool).stay_online()
    top = organisations.create_organisation(principal=SYSTEM, slug="university", name="University")
    tenants.change_tenant(principal=SYSTEM, tenant=cast.acme, organisation=top)
    for tenant in (cast.acme, cast.globex):
        placed(cast, machine, tenant=tenant)
    page = text(olga, "/reports/?by=organisation")
    assert "/organisations/university/" in page
    assert "Tenants without an organisation" in page
    assert "/tenants/acme/" not in page
    below = text(olga, "/reports/?organisation=university")
    assert "/tenants/acme/" in below
    assert "/tenants/globex/" not in below


def test_the_forms_show_the_effect_first(cast: Cast, browser: SignIn) -> None:
    give_plenty(cast.acme)
    rows = [
        organisations.create_organisation(principal=SYSTEM, slug=slug, name=slug) for slug in ("physics", "chemistry")
    ]
    tenants.change_tenant(principal=SYSTEM, tenant=cast.acme, organisation=rows[0])
    made = [
        organisations.create_quota(principal=SYSTEM, organisation=row, pool=None, resource="core_percent", hard=100)
        for row in rows
    ]
    ask(cast, core_request=60)
    olga, asked = browser("olga"), {"act": "preview"}
    page = olga.post(f"/organisation-quotas/{made[0].pk}/", {"hard": "50", "version": made[0].version, **asked})
    words = " ".join(page.content.decode().split())
    assert page.status_code == 200
    assert "Nothing is changed yet." in words
    assert "10 % more than it may." in words
    cast.acme.refresh_from_db()
    moved = {"name": "Acme", "weight": "1", "cohort": "", "organisation": "chemistry", "version": cast.acme.version}
    words = " ".join(olga.post("/tenants/acme/change/", moved | asked).content.decode().split())
    assert "physics, core: 0 % of 100 %" in words
    assert "chemistry, core: 60 % of 100 %" in words
    below = {"name": "physics", "parent": "chemistry", "version": rows[0].version}
    words = " ".join(olga.post("/organisations/physics/", below | asked).content.decode().split())
    assert "chemistry, core: 60 % of 100 %" in words
    new = {"resource": "memory_mib", "pool": "", "hard": "1"}
    words = " ".join(olga.post("/organisations/physics/quotas/new/", new | asked).content.decode().split())
    assert "more than it may." in words
    assert Tenant.objects.get(slug="acme").organisation == rows[0]
    assert OrganisationQuota.objects.count() == 2
