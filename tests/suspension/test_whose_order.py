"""Orders of the owner and of the platform: who puts a claim aside, and who ends it."""

import json
from collections.abc import Callable

from django.test import Client

from apps.quotas.models import AuditEvent, WebhookDelivery
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.providers import suspension_orders
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Cast, Machine, assert_books_agree, placed, seen
from tests.suspension.test_pages import browser, page_of
from tests.suspension.test_suspending import resume, suspend, suspended

__all__ = ["browser"]

WHY = "Its node is being drained"


def put_aside(cast: Cast, machine: Machine, by: str = "drain") -> Claim:
    """Create a claim that the platform has suspended."""
    claim, _ = placed(cast, machine)
    suspension_orders.get().suspend_claim(principal=SYSTEM, claim=claim, by=by, why=WHY)
    machine.obey()
    claim.refresh_from_db()
    assert (claim.state, claim.suspended_by) == ("suspended", by)
    return claim


def resume_as(claim: Claim, by: str) -> str:
    return suspension_orders.get().resume_claim(principal=SYSTEM, claim=claim, by=by).state


def test_an_owners_suspension_is_the_owners_until_the_claim_is_active(cast: Cast, machine: Machine) -> None:
    claim = suspended(cast, machine)
    path = f"claims/{claim.uid}/"
    assert cast.max.get(path).body["suspended_by"] == "owner"
    assert resume_as(claim, "drain") == "suspended", "only the owner resumes it"
    assert resume(cast, claim).body["suspended_by"] == "owner"
    run_round(cast.pool)
    machine.obey()
    document = cast.max.get(path).body
    assert (document["state"], document["suspended_by"]) == ("active", "")


def test_the_platform_resumes_what_it_has_suspended_and_nobody_elses(cast: Cast, machine: Machine) -> None:
    claim = put_aside(cast, machine)
    assert resume_as(claim, "reclaim") == "suspended"
    assert resume_as(claim, "drain") == "resuming"
    run_round(cast.pool)
    machine.obey()
    claim.refresh_from_db()
    assert (claim.state, claim.suspended_by) == ("active", "")
    assert_books_agree()


def test_an_owner_is_told_why_and_may_take_a_claim_over(cast: Cast, machine: Machine) -> None:
    claim = put_aside(cast, machine)
    document = cast.max.get(f"claims/{claim.uid}/").body
    assert document["reasons"] == [{"code": "drain", "gpus": 0, "detail": WHY}]
    event = AuditEvent.objects.filter(action="claim.suspend").latest("pk")
    assert event.after is not None
    assert (event.after["by"], event.after["why"]) == ("drain", WHY)
    assert suspend(cast, claim).body["suspended_by"] == "owner"
    assert suspend(cast, claim).body["version"] == cast.max.get(f"claims/{claim.uid}/").body["version"]
    assert resume_as(claim, "drain") == "suspended"


def test_an_owner_may_resume_what_the_platform_has_suspended(cast: Cast, machine: Machine) -> None:
    claim = put_aside(cast, machine)
    assert resume(cast, claim).body["state"] == "resuming"


def test_a_second_order_of_the_platform_leaves_a_claim_to_the_first(cast: Cast, machine: Machine) -> None:
    claim = put_aside(cast, machine)
    suspension_orders.get().suspend_claim(principal=SYSTEM, claim=claim, by="idle")
    claim.refresh_from_db()
    assert claim.suspended_by == "drain"
    # But one that waits to resume is suspended again by whom that orders.
    resume_as(claim, "drain")
    suspension_orders.get().suspend_claim(principal=SYSTEM, claim=claim, by="idle")
    claim.refresh_from_db()
    assert (claim.state, claim.suspended_by) == ("suspended", "idle")


def test_the_page_and_the_event_say_by_whose_order(
    cast: Cast, machine: Machine, browser: Callable[[str], Client]
) -> None:
    cast.anna.post("webhooks/", {"tenant": "acme", "url": "https://hooks.example.org/x", "events": ["claim.suspended"]})
    claim = put_aside(cast, machine)
    page = page_of(browser("max"), claim)
    assert "Suspended by the drain of its node." in page
    assert WHY in page
    body = json.loads(WebhookDelivery.objects.get(kind="claim.suspended").body)["data"]
    assert (body["claim"]["suspended_by"], body["why"]) == ("drain", WHY)


def kinds_told() -> list[str]:
    return list(WebhookDelivery.objects.order_by("pk").values_list("kind", flat=True))


def listen(cast: Cast) -> None:
    kinds = ["claim.suspend_failed", "claim.suspended", "claim.resumed", "claim.active"]
    cast.anna.post("webhooks/", {"tenant": "acme", "url": "https://hooks.example.org/x", "events": kinds})


def test_a_refused_suspension_sends_one_event_however_far_it_came(cast: Cast, machine: Machine) -> None:
    claim, first = placed(cast, machine, gpu_count=2, core_request=100)
    second = claim.assignments.exclude(pk=first.pk).get()
    listen(cast)
    suspend(cast, claim)
    machine.say(seen(first, "suspended"), seen(second, "in_force", suspend_refused="It uses managed memory."))
    claim.refresh_from_db()
    assert claim.state == "resuming", "one of its GPUs was left already"
    machine.obey()
    claim.refresh_from_db()
    assert (claim.state, claim.suspended_by) == ("active", "")
    assert kinds_told() == ["claim.suspend_failed"]


def test_a_refused_resumption_sends_one_event_however_far_it_came(cast: Cast, machine: Machine) -> None:
    claim = suspended(cast, machine, gpu_count=2, core_request=100)
    first, second = claim.assignments.order_by("pk")
    listen(cast)
    resume(cast, claim)
    run_round(cast.pool)
    machine.say(seen(first, "in_force"), seen(second, "suspended", suspend_refused="Out of memory on GPU 1."))
    claim.refresh_from_db()
    assert claim.state == "suspending", "one of its GPUs still runs it"
    machine.obey()
    claim.refresh_from_db()
    assert claim.state == "suspended"
    assert kinds_told() == ["claim.suspend_failed"]
