"""Changes on pages: claims created, resized, released; nodes cordoned."""

from datetime import timedelta

import pytest
from django.utils import timezone

from apps.nodes.models import Node, Sample
from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.desired import claim_secret
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import GIB, Cast, Machine, ask, give, placed
from tests.measurements import keep
from tests.pages.conftest import SignIn

NEW = {
    "tenant": "acme",
    "name": "train-7",
    "pool": "default",
    "gpu_count": "1",
    "core_request": "25",
    "core_limit": "50",
    "memory_mib": "4",
}


def resize(claim: Claim, **typed: int) -> dict[str, str]:
    """Post the form as a browser sends it: with its present values, and the earlier ones."""
    before = {"core_request": claim.core_request, "core_limit": claim.core_limit, "memory_mib": claim.memory_mib}
    units = {"memory_mib": " MiB"}
    return {f"initial-{name}": f"{value}{units.get(name, '')}" for name, value in before.items()} | {
        name: f"{value}{units.get(name, '')}" for name, value in {**before, **typed}.items()
    }


def test_a_resize_by_form_is_wanted_at_once_and_shown_in_force_with_its_time(
    cast: Cast, machine: Machine, browser: SignIn
) -> None:
    claim, assignment = placed(cast, machine)
    max_ = browser("max")
    answer = max_.post(f"/claims/{claim.uid}/resize/", resize(claim, core_limit=75), headers={"HX-Request": "true"})
    assert answer.status_code == 200
    assert "Waiting for the agent" in answer.content.decode()
    assignment.refresh_from_db()
    assert assignment.core_limit == 75
    machine.obey()
    text = max_.get(f"/claims/{claim.uid}/").content.decode()
    assert "Applied in" in text
    assert "limit 30 → 75 %" in text
    assert AuditEvent.objects.filter(action="claim.resize", actor="user:max", source_ip="127.0.0.1").exists()


def test_what_was_put_on_other_gpus_later_does_not_say_how_long_a_resize_took(
    cast: Cast, machine: Machine, browser: SignIn
) -> None:
    claim, assignment = placed(cast, machine)
    max_ = browser("max")
    max_.post(f"/claims/{claim.uid}/resize/", resize(claim, core_limit=75), headers={"HX-Request": "true"})
    machine.obey()
    type(assignment).objects.filter(pk=assignment.pk).update(created_at=timezone.now())
    text = max_.get(f"/claims/{claim.uid}/").content.decode()
    assert "<b>Applied</b>" in text
    assert "Applied in" not in text


def test_whoever_resizes_second_is_told_of_the_first_and_puts_only_what_was_typed_in_its_place(
    cast: Cast, machine: Machine, browser: SignIn
) -> None:
    claim, _ = placed(cast, machine)
    typed = resize(claim, core_limit=60)
    resize_claim(principal=cast.member, claim=claim, changes=ClaimChanges(memory_mib=2 * GIB))
    answer = browser("anna").post(f"/claims/{claim.uid}/resize/", typed)
    page = " ".join(answer.content.decode().split())
    assert answer.status_code == 200
    assert "Changed by user:max" in page
    assert "It is now: request 30 %, limit 30 %, memory 2 GiB." in page
    claim.refresh_from_db()
    assert (claim.core_limit, claim.memory_mib) == (30, 2 * GIB)
    # Sent again as the form now is.
    form = answer.context["form"]
    again = {name: form.data[name] for name in (*form.fields, *(f"initial-{name}" for name in form.fields))}
    assert (again["core_limit"], again["memory_mib"]) == ("60", "2 GiB")
    assert browser("anna").post(f"/claims/{claim.uid}/resize/", again).status_code == 302
    claim.refresh_from_db()
    assert (claim.core_limit, claim.memory_mib) == (60, 2 * GIB)


def test_memory_below_its_use_is_warned_of_in_gib_before(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, assignment = placed(cast, machine)
    used_bytes = 6 * GIB << 20
    keep([Sample(assignment_uid=assignment.uid, at=timezone.now(), core_percent=5, memory_bytes=used_bytes)])
    path, typed = f"/claims/{claim.uid}/resize/", resize(claim, memory_mib=4 * GIB)
    answer = browser("max").post(path, typed)
    page = " ".join(answer.content.decode().split())
    assert answer.status_code == 200
    assert "Its programs use 6 GiB on one GPU now. With 4 GiB," in page
    assert "until they have freed 2 GiB" in page
    claim.refresh_from_db()
    assert claim.memory_mib == 8 * GIB
    # The answer is for this amount: a smaller one is asked about again.
    lower = resize(claim, memory_mib=2 * GIB) | {"below_use": str(4 * GIB)}
    assert browser("max").post(path, lower).status_code == 200
    assert browser("max").post(path, typed | {"below_use": str(4 * GIB)}).status_code == 302
    claim.refresh_from_db()
    assert claim.memory_mib == 4 * GIB


def test_memory_above_its_use_is_not_warned_of(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, assignment = placed(cast, machine)
    keep([Sample(assignment_uid=assignment.uid, at=timezone.now(), core_percent=5, memory_bytes=GIB << 20)])
    assert browser("max").post(f"/claims/{claim.uid}/resize/", resize(claim, memory_mib=2 * GIB)).status_code == 302


def test_the_resize_panel_follows_the_state_while_its_form_stays(cast: Cast, machine: Machine, browser: SignIn) -> None:
    def panel() -> str:
        answer = browser("max").get(f"/claims/{claim.uid}/", headers={"HX-Request": "true"}).content.decode()
        return answer.partition('<div id="resize-state" hx-swap-oob="innerHTML">')[2].partition("</div>")[0]

    claim = ask(cast)
    assert "Changes the request of the queued claim." in panel()
    run_round(cast.pool)
    machine.obey()
    assert "within a second, without a restart" in panel()
    assert "up to 100 % core, 24 GiB" in panel()
    release_claim(principal=SYSTEM, claim=Claim.objects.get(pk=claim.pk))
    assert "can no longer be resized" in panel()


def test_a_resize_that_the_gpu_has_no_room_for_is_refused_in_words(
    cast: Cast, machine: Machine, browser: SignIn
) -> None:
    machine.stay_online()
    claims = [placed(cast, machine, core_request=50, memory_mib=12 * GIB)[0] for _ in range(8)]
    answer = browser("max").post(
        f"/claims/{claims[0].uid}/resize/",
        resize(claims[0], core_request=80, core_limit=80),
        headers={"HX-Request": "true"},
    )
    assert answer.status_code == 422
    assert "The GPU has no room for this" in answer.content.decode()
    claims[0].refresh_from_db()
    assert claims[0].core_request == 50


def test_a_resize_beyond_the_quota_is_refused_at_its_field(cast: Cast, browser: SignIn) -> None:
    give(cast.acme, core_percent=100, memory_mib=10 * GIB)
    claim, _ = placed(cast, Machine("gpu1", cast.pool))
    answer = browser("max").post(f"/claims/{claim.uid}/resize/", resize(claim, memory_mib=12 * GIB))
    assert answer.status_code == 422
    assert "memory_mib" in answer.context["form"].errors
    claim.refresh_from_db()
    assert claim.memory_mib == 8 * GIB


@pytest.mark.parametrize(("field", "value"), [("core_limit", 101), ("core_request", 0), ("core_limit", 10)])
def test_a_resize_to_nonsense_is_refused_at_its_field(
    cast: Cast, machine: Machine, browser: SignIn, field: str, value: int
) -> None:
    claim, _ = placed(cast, machine)
    answer = browser("max").post(f"/claims/{claim.uid}/resize/", resize(claim, **{field: value}))
    assert answer.status_code == 422
    assert field in answer.context["form"].errors
    claim.refresh_from_db()
    assert claim.generation == 1


def test_a_viewer_sees_a_claim_and_cannot_change_it(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, _ = placed(cast, machine)
    vera = browser("vera")
    text = vera.get(f"/claims/{claim.uid}/").content.decode()
    assert "Apply" not in text
    assert vera.post(f"/claims/{claim.uid}/release/").status_code == 403
    answer = vera.post(f"/claims/{claim.uid}/resize/", resize(claim, core_limit=90))
    assert "needs the role member" in answer.content.decode()
    claim.refresh_from_db()
    assert (claim.state, claim.core_limit) == ("active", 30)


def test_a_release_gives_the_claim_back(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, _ = placed(cast, machine)
    answer = browser("max").post(f"/claims/{claim.uid}/release/", follow=True)
    assert "is being released" in answer.content.decode()
    machine.obey()
    claim.refresh_from_db()
    assert claim.state == "released"
    assert machine.gpu().core_used == 0
    assert browser("max").get(f"/claims/{claim.uid}/").status_code == 200


def test_a_new_claim_is_made_by_form(cast: Cast, machine: Machine, browser: SignIn) -> None:
    answer = browser("max").post("/claims/new/", NEW)
    claim = Claim.objects.get()
    assert answer["Location"] == f"/claims/{claim.uid}/"
    assert (claim.name, claim.core_request, claim.core_limit, claim.created_by) == ("train-7", 25, 50, "user:max")


def test_what_only_some_claims_say_is_folded_and_taken(cast: Cast, machine: Machine, browser: SignIn) -> None:
    plain = browser("max").get("/claims/new/").content.decode()
    assert '<details class="more">' in plain
    Node.objects.update(labels={"zone": "a", "net": "ib"})
    soon = (timezone.now() + timedelta(days=1)).replace(second=0, microsecond=0)
    more = {
        "priority": "-5", "time_limit_minutes": "90", "start_at": soon.strftime("%Y-%m-%dT%H:%M"),
        "affinity": "a", "anti_affinity": "b", "exclusion": "c", "node_selector": "zone=a, net=ib",
    }  # fmt: skip
    assert browser("max").post("/claims/new/", NEW | more).status_code == 302
    claim = Claim.objects.get()
    said = (claim.priority, claim.time_limit_seconds, claim.start_at, claim.node_selector)
    assert said == (-5, 5400, soon, {"zone": "a", "net": "ib"})
    assert (claim.affinity, claim.anti_affinity, claim.exclusion) == ("a", "b", "c")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", "2000"), ("time_limit_minutes", "0"), ("affinity", "no spaces"), ("node_selector", "zone"),
        ("node_selector", "-=x"), ("node_selector", "zone=a b"), ("start_at", "2099-01-01T00:00"),
    ],
)  # fmt: skip
def test_a_wrong_one_is_shown_unfolded(cast: Cast, machine: Machine, browser: SignIn, field: str, value: str) -> None:
    answer = browser("max").post("/claims/new/", NEW | {field: value})
    assert answer.status_code == 422
    assert field in answer.context["form"].errors
    assert '<details class="more" open>' in answer.content.decode()
    assert not Claim.objects.exists()


def test_a_new_claim_needs_a_tenant_in_which_one_may_make_it(cast: Cast, machine: Machine, browser: SignIn) -> None:
    for name in ("vera", "gus"):
        answer = browser(name).post("/claims/new/", NEW)
        assert answer.status_code == 422, name
        assert "tenant" in answer.context["form"].errors
    assert not Claim.objects.exists()


def test_a_new_claim_beyond_the_quota_says_the_numbers(cast: Cast, browser: SignIn) -> None:
    give(cast.acme, core_percent=20, memory_mib=GIB)
    answer = browser("max").post("/claims/new/", NEW)
    assert answer.status_code == 422
    assert "core_request" in answer.context["form"].errors
    assert not Claim.objects.exists()


def test_a_form_without_its_token_changes_nothing(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, _ = placed(cast, machine)
    max_ = browser("max", enforce_csrf_checks=True)
    for path, values in {"resize/": resize(claim, core_limit=90), "release/": {}}.items():
        answer = max_.post(f"/claims/{claim.uid}/{path}", values)
        assert answer.status_code == 403
        assert "Form expired" in answer.content.decode()
    claim.refresh_from_db()
    assert (claim.state, claim.core_limit) == ("active", 30)


def test_an_operator_cordons_and_uncordons_a_node(cast: Cast, machine: Machine, browser: SignIn) -> None:
    olga = browser("olga")
    for said, wanted in {"yes": True, "no": False}.items():
        assert olga.post("/nodes/gpu1/cordon/", {"cordoned": said}, follow=True).status_code == 200
        assert Node.objects.get(name="gpu1").cordoned is wanted


def test_no_page_shows_a_claims_secret(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, _ = placed(cast, machine)
    text = browser("olga").get(f"/claims/{claim.uid}/").content.decode()
    assert str(claim.uid) in text
    assert claim_secret(claim.uid) not in text


def test_weight_and_best_effort_are_asked_for_only_where_a_pool_looks_at_them(
    cast: Cast, machine: Machine, browser: SignIn
) -> None:
    max_ = browser("max")
    text = max_.get("/claims/new/").content.decode()
    assert 'name="weight"' not in text
    assert 'name="best_effort"' not in text
    change_pool(principal=SYSTEM, pool=cast.pool, sharing_policy="weighted")
    text = max_.get("/claims/new/").content.decode()
    assert 'name="weight"' in text
    assert "Used in pool default." in text
    assert 'name="best_effort"' not in text
    answer = max_.post("/claims/new/", {**NEW, "weight": "7"})
    claim = Claim.objects.get()
    assert (answer.status_code, claim.weight) == (302, 7)
    assert "weight 7" in max_.get(f"/claims/{claim.uid}/").content.decode()
    assert "Weighted: parts by" in browser("olga").get("/nodes/gpu1/").content.decode()
