"""Claims with hard isolation on pages: asked for by the form, shown by claim and GPU."""

import re
from typing import Any

import pytest
from django.template.loader import render_to_string
from django.utils import timezone

from agent import wire
from apps.nodes.models import Sample
from apps.quotas.models import ResourceQuota
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Cast, Machine, give_plenty
from tests.measurements import keep
from tests.pages.conftest import SignIn
from tests.scheduling.divided import MEMORY_MIB, on_the_wire

FORM = {"tenant": "acme", "pool": "default", "name": "x", "gpu_count": 1, "core_request": 25, "memory_mib": "20 GiB"}


def text(answer: Any) -> str:
    return " ".join(answer.content.decode().split())


@pytest.fixture
def divided(cast: Cast) -> Machine:
    """Return a node with one GPU in MIG mode, on which somebody made an instance."""
    give_plenty(cast.acme)
    foreign = [wire.MigPlace(profile="1g.18gb", start=6, size=1)]
    return Machine(
        "mig1", cast.pool, gpus=1, memory_mib=MEMORY_MIB["H200"], model="NVIDIA H200",
        mig={0: on_the_wire(foreign=foreign)},
    )  # fmt: skip


def test_the_form_offers_isolation_only_where_a_gpu_is_in_mig_mode(
    cast: Cast, machine: Machine, browser: SignIn
) -> None:
    page = browser("max").get("/claims/new/")
    assert page.status_code == 200
    assert 'name="profile"' not in text(page)
    Machine("mig1", cast.pool, gpus=1, mig={0: on_the_wire()})
    page = browser("max").get("/claims/new/")
    assert 'name="profile"' in text(page)
    assert 'name="isolation"' in text(page)


@pytest.mark.parametrize(
    ("asked", "profile"),
    [({"isolation": "hard"}, "2g.35gb"), ({"profile": "1g.18gb"}, "1g.18gb"), ({"isolation": "shared"}, None)],
)
def test_a_claim_is_made_by_the_form(
    cast: Cast, divided: Machine, browser: SignIn, asked: dict[str, str], profile: str | None
) -> None:
    if profile is None:
        Machine("gpu1", cast.pool)
    answer = browser("max").post("/claims/new/", {**FORM, **asked})
    assert answer.status_code == 302, text(answer)
    assert Claim.objects.get().profile == profile


def test_a_claim_opens_its_instance_and_another_joins_it_by_the_form(
    cast: Cast, divided: Machine, browser: SignIn
) -> None:
    part = {"profile": "3g.71gb", "own_core": 0, "own_memory_mib": "16 GiB"}
    answer = browser("max").post("/claims/new/", {**FORM, **part, "name": "team"})
    assert answer.status_code == 302, text(answer)
    opener = Claim.objects.get()
    assert (opener.own_core, opener.own_memory_mib, opener.core_request) == (0, 16384, 42)
    run_round(cast.pool)
    divided.obey()
    page = text(browser("max").get("/claims/new/"))
    assert f'<option value="{opener.uid}">acme/team: 3g.71gb, default</option>' in page
    inside = {"instance_of": str(opener.uid), "isolation": "shared", "core_request": 20, "core_limit": 42}
    said = text(browser("max").post("/claims/new/", {**FORM, **inside, "act": "estimate"}))
    assert "instance of team (3g.71gb), which is charged with all of it: this claim is charged nothing." in said
    assert "charged as 0 GPU-hours" in said
    answer = browser("max").post("/claims/new/", {**FORM, **inside})
    assert answer.status_code == 302, text(answer)
    claim = Claim.objects.exclude(pk=opener.pk).get()
    assert (claim.instance_of, claim.state, claim.core_limit, claim.charged_vgpus) == (opener.uid, "assigned", 42, 0)


def test_only_ones_own_opened_instances_are_offered(cast: Cast, divided: Machine, browser: SignIn) -> None:
    part = {"profile": "3g.71gb", "own_core": 12, "own_memory_mib": 16384, "tenant": "acme", "name": "secret"}
    assert cast.max.post("claims/", part).status == 201
    assert "secret" in text(browser("max").get("/claims/new/"))
    give_plenty(cast.globex)
    assert "secret" not in text(browser("gus").get("/claims/new/"))


def test_the_preview_charges_the_whole_instance(divided: Machine, browser: SignIn) -> None:
    for asked, percent in (({"profile": "3g.71gb"}, "42 %"), ({"isolation": "hard"}, "28 %")):
        page = text(browser("max").post("/claims/new/", {**FORM, **asked, "act": "estimate"}))
        assert "is charged with all of it, whoever uses it" in page
        assert f'<td class="num"> {percent}</td>' in page
    page = text(browser("max").post("/claims/new/", {**FORM, "profile": "9g.9gb", "act": "estimate"}))
    assert "whoever uses it" not in page


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"own_core": 10, "profile": "3g.71gb"}, "Give own core and own memory together."),
        ({"own_core": 10, "own_memory_mib": "1 GiB"}, "Name the profile of the instance that is to be opened."),
    ],
)
def test_half_an_own_part_is_refused_at_its_field(
    divided: Machine, browser: SignIn, part: dict[str, Any], words: str
) -> None:
    answer = browser("max").post("/claims/new/", {**FORM, **part})
    assert answer.status_code == 422
    assert words in text(answer)


def test_more_instances_than_the_quota_has_are_asked_for_from_the_preview(
    cast: Cast, divided: Machine, browser: SignIn
) -> None:
    cast.olga.post("quotas/", {"tenant": "acme", "resource": "mig/3g.71gb", "hard": 0})
    page = text(browser("max").post("/claims/new/", {**FORM, "profile": "3g.71gb", "act": "estimate"}))
    assert "MIG instances 3g.71gb" in page
    assert "/requests/new/?tenant=acme&amp;resource=mig%2F3g.71gb&amp;amount=1" in page
    page = text(browser("max").get("/requests/new/?tenant=acme&resource=mig%2F3g.71gb&amount=1"))
    assert '<option value="mig/3g.71gb" selected>MIG instances 3g.71gb</option>' in page
    asked = {"tenant": "acme", "resource": "mig/3g.71gb", "amount": 1, "reason": "a course"}
    assert browser("max").post("/requests/new/", asked).status_code == 302
    anna = browser("anna")
    assert "MIG instances 3g.71gb" in text(anna.get("/requests/"))
    assert "A member of acme requests 1 more MIG instances 3g.71gb" in text(anna.get("/"))


def test_what_an_instance_cannot_have_is_said_on_the_form(divided: Machine, browser: SignIn) -> None:
    answer = browser("max").post("/claims/new/", {**FORM, "isolation": "hard", "gpu_count": 2})
    assert answer.status_code == 422
    assert "A program uses one MIG instance: leave gpu_count out" in text(answer)
    answer = browser("max").post("/claims/new/", {**FORM, "profile": "large"})
    assert "Name a profile, such as 2g.35gb." in text(answer)


def test_the_pages_show_the_instances_and_the_room_that_is_left(cast: Cast, divided: Machine, browser: SignIn) -> None:
    browser("max").post("/claims/new/", {**FORM, "profile": "2g.35gb"})
    run_round(cast.pool)
    divided.obey()
    claim = Claim.objects.get()
    page = text(browser("max").get(f"/claims/{claim.uid}/"))
    assert "hard, MIG profile 2g.35gb" in page
    assert ", MIG instance 2g.35gb at slice 4" in page
    assert "The claim has the size of its MIG instance. Create another claim, then release this one." in page
    for refused in ("Suspend…", "Move…", "gpucloud claim resize", "Resize by API"):
        assert refused not in page
    page = text(browser("olga").get(f"/gpus/{divided.gpu().uuid}/"))
    assert f"Reallocate {claim.name}" not in page
    assert f'<td>4–5</td> <td>2g.35gb</td> <td> <a href="/claims/{claim.uid}/">' in page
    assert "<td>6</td> <td>1g.18gb</td> <td> made on the machine; left alone </td>" in page
    assert '<td>3g.71gb</td> <td class="num">42 %</td> <td class="num">69.5 GiB</td> <td class="num">1</td>' in page
    assert "MIG mode" in text(browser("olga").get("/nodes/mig1/"))


def test_the_pages_show_who_shares_an_instance_and_the_room_in_it(
    cast: Cast, divided: Machine, browser: SignIn
) -> None:
    body = {"tenant": "acme", "profile": "3g.71gb", "own_core": 12, "own_memory_mib": 16384, "name": "open"}
    opener = cast.max.post("claims/", body).body["uid"]
    run_round(cast.pool)
    divided.obey()
    body = {"tenant": "acme", "instance_of": opener, "core_request": 20, "memory_mib": 8192, "name": "inside"}
    inside = cast.max.post("claims/", body).body["uid"]
    divided.obey()
    page = text(browser("max").get(f"/claims/{opener}/"))
    assert "Own part of the instance</dt><dd>12 %, 16 GiB" in page
    assert "Room for more claims in it</dt><dd>10 %, 45.5 GiB" in page
    share = Assignment.objects.get(claim__uid=opener)
    keep([Sample(assignment_uid=share.uid, at=timezone.now(), core_percent=5, memory_bytes=0)])
    (line,) = browser("max").get(f"/claims/{opener}/series/").json()["series"]
    assert line["core_request_percent"] == [12]
    assert f'<a href="/claims/{inside}/">inside</a>' in page
    page = text(browser("max").get(f"/claims/{inside}/"))
    assert f'In the instance of</dt><dd><a href="/claims/{opener}/">' in page
    assert "Available on this GPU: up to 30 % core, 53.5 GiB" in page
    page = text(browser("olga").get(f"/gpus/{divided.gpu().uuid}/"))
    assert f'<a href="/claims/{opener}/">acme/open</a>, <a href="/claims/{inside}/">acme/inside</a>' in page
    assert "within opened instances" in page
    assert "Back end" not in page


def test_the_own_part_of_an_opened_instance_is_changed_by_its_form(
    cast: Cast, divided: Machine, browser: SignIn
) -> None:
    body = {"tenant": "acme", "profile": "3g.71gb", "own_core": 12, "own_memory_mib": 16384, "name": "open"}
    opener = cast.max.post("claims/", body).body["uid"]
    run_round(cast.pool)
    divided.obey()
    path = f"/claims/{opener}/sharing/"
    assert path in text(browser("max").get(f"/claims/{opener}/"))
    page = text(browser("max").get(path))
    assert 'name="own_core" value="12"' in page
    assert 'name="schedule"' not in page, "an instance cannot be suspended"
    found = re.search(r'name="version" value="([^"]*)"', page)
    assert found is not None
    typed = {"weight": 1, "own_core": 20, "own_memory_mib": "24 GiB", "version": found.group(1)}
    assert browser("max").post(path, typed).status_code == 302
    claim = Claim.objects.get()
    assert (claim.own_core, claim.own_memory_mib) == (20, 24576)
    browser("max").post(path, {**typed, "own_core": 21})
    claim.refresh_from_db()
    assert claim.own_core == 20, "the form showed what was there before"
    body = {"tenant": "acme", "instance_of": opener, "core_request": 22, "memory_mib": 8192}
    assert cast.max.post("claims/", body).body["state"] == "assigned"
    page = text(browser("max").get(path))
    found = re.search(r'name="version" value="([^"]*)"', page)
    assert found is not None
    answer = browser("max").post(path, {**typed, "own_core": 21, "version": found.group(1)})
    assert "1 claim in it has 22 % and 8192 MiB" in text(answer)


def test_a_quota_of_a_profile_is_made_by_the_form_and_named_on_pages(
    cast: Cast, divided: Machine, browser: SignIn
) -> None:
    olga = browser("olga")
    assert '<option value="mig/2g.35gb">MIG instances 2g.35gb</option>' in text(olga.get("/tenants/acme/quotas/new/"))
    made = {
        "resource": "mig/2g.35gb",
        "hard": "1",
        "pool": "",
        "borrowing_limit_unlimited": "on",
        "lending_limit_unlimited": "on",
    }
    assert olga.post("/tenants/acme/quotas/new/", made).status_code == 302
    cast.max.post("claims/", {"tenant": "acme", "profile": "2g.35gb"})
    for path in ("/tenants/acme/", "/"):
        assert "MIG instances 2g.35gb" in text(olga.get(path))
    quota = ResourceQuota.objects.get(resource="mig/2g.35gb")
    page = text(olga.get(f"/quotas/{quota.pk}/"))
    assert "MIG instances 2g.35gb" in page
    assert "1 of 1 used" in page
    assert "unnamed" in text(olga.get(f"/quotas/{quota.pk}/remove/"))
    assert "mig/2g.35gb" in text(olga.get("/search/?q=mig%2F2g"))


def test_a_preview_names_the_profile() -> None:
    """A preview's rows are plain facts, not quotas."""
    shown = render_to_string("tenants/_resource.html", {"quota": {"resource": "mig/2g.35gb"}})
    assert shown.strip() == "MIG instances 2g.35gb"
