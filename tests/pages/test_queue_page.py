"""The queue's page: its order, the visibility of claims, and the reasons on a queued claim's page."""

from datetime import timedelta
from typing import Any

from django.test import Client
from django.utils import timezone

from apps.accounting.services.past_use import settle
from apps.console.queue.rounds import placed_by
from apps.quotas.principals import SYSTEM
from apps.quotas.services import tenants
from apps.scheduling.models import PastUse
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Cast, Machine, ask, placed
from tests.pages.conftest import SignIn


def text(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


def test_the_page_shows_the_queue_in_its_order(cast: Cast, machine: Machine, browser: SignIn) -> None:
    for name, priority in (("later", 0), ("urgent", 5)):
        ask(cast, name=name, core_request=100, gpu_count=4, priority=priority)
    placed(cast, machine, core_request=10, priority=9, time_limit_seconds=7200)
    page = text(browser("olga"), "/queue/")
    assert page.index("urgent") < page.index("later")
    assert "in 2 h" in page
    assert "fit on one node are 3" in page


def test_a_member_sees_its_own_claims_only(cast: Cast, machine: Machine, browser: SignIn) -> None:
    placed(cast, machine, core_request=10)
    ask(cast, name="theirs", core_request=100, gpu_count=4, tenant=cast.globex)
    run_round(cast.pool)
    page = text(browser("vera"), "/queue/")
    assert "theirs" not in page
    assert "1 claim of other tenants waits here" in page
    assert "theirs" in text(browser("gus"), "/queue/")


def test_an_empty_queue_and_another_pool_are_shown_too(cast: Cast, machine: Machine, browser: SignIn) -> None:
    ask(cast, name="here", core_request=10)
    other = tenants.create_pool(principal=SYSTEM, name="other")
    assert "No pending claims" in text(browser("vera"), f"/queue/?pool={other.name}")
    assert "here" in text(browser("vera"), "/queue/?pool=nonsense")
    # A reader who names no pool sees the one in which their claim waits.
    ask(cast, name="elsewhere", core_request=10, tenant=cast.globex, pool=other)
    assert "elsewhere" in text(browser("gus"), "/queue/")
    assert '<option value="other" selected>' in text(browser("gus"), "/queue/")
    living = browser("vera").get("/queue/", headers={"HX-Request": "true"}).content.decode()
    assert "<html" not in living


def test_a_waiting_claims_page_says_its_place_its_start_and_what_would_fit(
    cast: Cast, machine: Machine, browser: SignIn
) -> None:
    placed(cast, machine, core_request=10, time_limit_seconds=7200)
    claim = ask(cast, name="large", core_request=100, gpu_count=4)
    run_round(cast.pool)
    page = text(browser("max"), f"/claims/{claim.uid}/")
    assert "Place 1 of 1 in the" in page
    assert "Expected to start <time" in page
    assert "Reduce the number of GPUs to 3 to start now" in page


def test_a_claims_page_says_what_else_was_asked_for(cast: Cast, machine: Machine, browser: SignIn) -> None:
    asked: dict[str, Any] = {"group": "train", "group_size": 2, "time_limit_seconds": 5400, "anti_affinity": "web"}
    machine.node.change(labels={"zone": "b"})
    claim = ask(cast, core_request=10, node_selector={"zone": "b"}, **asked)
    run_round(cast.pool)
    page = text(browser("max"), f"/claims/{claim.uid}/")
    for words in ("train, of 2", "2 h (5400 s)", "<dt>Anti-affinity</dt><dd>web</dd>", "<dd>zone=b</dd>"):
        assert words in page
    # No release brings the rest of a group.
    assert "It is tried again" not in page
    plain = ask(cast, core_request=10)
    assert "Further settings" not in text(browser("max"), f"/claims/{plain.uid}/")


def test_a_nodes_page_shows_its_labels_and_how_its_pool_places(cast: Cast, machine: Machine, browser: SignIn) -> None:
    machine.node.change(labels={"zone": "b", "net": "ib"})
    page = text(browser("olga"), f"/nodes/{machine.node.name}/")
    assert "<dt>Placement</dt><dd>gpucloud</dd>" in page
    assert "zone=b" in page


def test_who_asked_to_start_later_needs_no_attention(cast: Cast, machine: Machine, browser: SignIn) -> None:
    ask(cast, name="tonight", core_request=10, start_at=timezone.now() + timedelta(hours=5))
    ask(cast, name="large", core_request=100, gpu_count=4)
    placed(cast, machine, core_request=10, priority=9)
    page = text(browser("olga"), "/")
    assert "large waits" in page
    assert "tonight waits" not in page


def test_an_operator_goes_from_a_claim_to_the_round_that_placed_it(
    cast: Cast, machine: Machine, browser: SignIn
) -> None:
    first, _ = placed(cast, machine, name="first", core_request=10)
    second, _ = placed(cast, machine, name="second", core_request=10)
    numbers = {claim.name: placed_by(claim) for claim in (first, second)}
    assert None not in numbers.values()
    assert numbers["first"] != numbers["second"]
    assert f'<a href="/rounds/{numbers["first"]}/">' in text(browser("olga"), f"/claims/{first.uid}/")
    assert "first" in text(browser("olga"), f"/rounds/{numbers['first']}/")
    assert "/rounds/" not in text(browser("max"), f"/claims/{first.uid}/")
    assert placed_by(ask(cast, name="waits", core_request=100, gpu_count=4)) is None


def test_a_pool_that_remembers_shows_what_tenants_held(cast: Cast, machine: Machine, browser: SignIn) -> None:
    placed(cast, machine, core_request=100)
    waiting = ask(cast, name="mine", core_request=100, gpu_count=4)
    run_round(cast.pool)
    assert "Fair share" not in text(browser("olga"), "/queue/")
    cast.pool.change(fair_share="decayed")
    assert "Past use is not counted yet: it follows within a minute." in text(browser("olga"), "/queue/")
    settle(cast.pool, now=timezone.now() + timedelta(days=7))
    for tenant in (cast.acme, cast.globex):
        PastUse.objects.update_or_create(
            pool=cast.pool,
            tenant=tenant,
            defaults={"core_percent": 300 if tenant == cast.acme else 100, "memory_mib": 0},
        )
    page = text(browser("olga"), "/queue/")
    assert "Past use halves in 7 d; counted up to " in page
    row = page[page.index('<th scope="row">acme</th>') :]
    for value in ("1.00 GPU", "3.00 GPU", "50.0 %", "75.0 %", "0.354"):  # 2^(-0.75/0.5)
        assert value in row[: row.index("</tr>")]
    assert '<th scope="row">globex</th>' in page
    assert '<th scope="row">globex</th>' not in text(browser("vera"), "/queue/")
    words = "Tenant acme holds 1.00 GPUs and held 3.00 on average (half-life 7 d)"
    assert words in text(browser("vera"), f"/claims/{waiting.uid}/")
