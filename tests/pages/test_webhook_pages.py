"""Webhook pages: creating, repairing and testing them; and the results of deliveries."""

import csv
import io
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from ipaddress import ip_network
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from apps.console.webhooks.webhook_forms import EVENTS
from apps.quotas.models import EventKind, Tenant, Webhook, WebhookDelivery
from apps.quotas.principals import SYSTEM
from apps.quotas.services.webhooks import hooks, outbox, sending, signing
from tests.cast import Cast
from tests.pages.conftest import SignIn
from tests.receiver import Receiver, receive

URL = "https://chat.example.net/in/s3cret"
TOLD = ["claim.active", "node.lost"]
SECRET = re.compile(r"whsec_[\w+/=]+")


@pytest.fixture
def anna(browser: SignIn) -> Client:
    return browser("anna")


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    settings.WEBHOOK_NETWORKS = [ip_network("127.0.0.0/8")]
    with receive() as it:
        yield it


def text(answer: Any) -> str:
    return " ".join(answer.content.decode().split())


def made(tenant: Tenant | None, url: str = URL, **facts: Any) -> Webhook:
    return hooks.create(principal=SYSTEM, tenant=tenant, url=url, events=TOLD, **facts)[0]


def path(hook: Webhook, act: str = "") -> str:
    return f"/webhooks/{hook.uid}/{act}"


def act(client: Client, hook: Webhook, name: str) -> str:
    """Press the button; return the page's message."""
    hook.refresh_from_db()
    return text(client.post(path(hook, f"{name}/"), {"version": hook.version}, follow=True))


def test_a_webhook_is_made_and_its_secret_is_shown_once(cast: Cast, anna: Client) -> None:
    page = text(anna.get("/new-webhook/?tenant=acme"))
    assert all(f'value="{name}"' in page for name in EventKind.values)
    answer = anna.post(
        "/new-webhook/", {"tenant": "acme", "url": URL, "description": "chat", "events": TOLD}, follow=True
    )
    assert (answer.status_code, "no-store" in answer["Cache-Control"]) == (200, True)
    hook = Webhook.objects.get()
    assert (hook.tenant, hook.url, hook.events, hook.created_by) == (cast.acme, URL, TOLD, "user:anna")
    assert SECRET.findall(text(answer)) == [signing.secret(hook)]
    for where in ("/webhooks/", path(hook)):
        shown = text(anna.get(where))
        assert "https://chat.example.net" in shown
        assert "whsec_" not in shown


def test_what_cannot_be_is_said_beside_what_was_typed(cast: Cast, anna: Client) -> None:
    posted: dict[str, Any] = {"tenant": "acme", "url": "https://127.0.0.1/", "events": TOLD}
    answer = anna.post("/new-webhook/", posted)
    assert answer.status_code == 422
    assert "A webhook cannot go to this URL" in text(answer)
    assert re.search(r'value="node\.lost"\s+checked', text(answer))
    wrongs: list[dict[str, Any]] = [
        {"events": []},
        {"events": ["claim.exploded"]},
        {"tenant": ""},
        {"tenant": "globex"},
    ]
    for wrong in wrongs:
        assert anna.post("/new-webhook/", {**posted, "url": URL, **wrong}).status_code == 422
    assert not Webhook.objects.exists()


def test_every_event_has_its_box_in_one_group() -> None:
    assert [value for _, group in EVENTS for value, _ in group] == EventKind.values


def test_the_platforms_are_the_operators(cast: Cast, browser: SignIn) -> None:
    olga, anna = browser("olga"), browser("anna")
    assert olga.post("/new-webhook/", {"tenant": "", "url": URL, "events": TOLD}).status_code == 302
    own = made(cast.acme, "https://acme.example.org/")
    listed = text(olga.get("/webhooks/"))
    assert listed.index("chat.example.net") < listed.index("acme.example.org")
    assert "acme.example.org" not in text(olga.get("/webhooks/?tenant=-"))
    assert "chat.example.net" not in text(anna.get("/webhooks/"))
    assert anna.get(path(Webhook.objects.get(tenant=None))).status_code == 404
    assert anna.get(path(own)).status_code == 200


@pytest.mark.parametrize(("name", "status"), [("max", 403), ("vera", 403), ("gus", 200)])
def test_nobody_else_sees_or_touches_one(cast: Cast, browser: SignIn, name: str, status: int) -> None:
    hook, reader = made(cast.acme), browser(name)
    delivery = hooks.send_test(principal=SYSTEM, hook=hook)
    assert reader.get(path(hook)).status_code == 404
    assert reader.get(path(hook, "?format=json")).status_code == 404
    for way in ("", "on/", "off/", "rotate/", "test/", "remove/", f"deliveries/{delivery.uid}/redeliver/"):
        assert reader.post(path(hook, way), {"version": hook.version}).status_code == 404, way
    listed = reader.get("/webhooks/")
    assert (listed.status_code, "chat.example.net" in text(listed)) == (status, False)
    hook.refresh_from_db()
    assert (hook.version, hook.enabled) == (1, True)


def test_a_change_is_applied_and_a_faster_one_is_not_overwritten(cast: Cast, anna: Client) -> None:
    hook = made(cast.acme)
    posted = {"url": URL, "description": "pager", "events": ["claim.failed"], "version": hook.version}
    assert anna.post(path(hook), posted).status_code == 302
    hook.refresh_from_db()
    assert (hook.description, hook.events) == ("pager", ["claim.failed"])
    late = text(anna.post(path(hook), {**posted, "description": "mine", "events": TOLD}))
    assert "Changed by user:anna at" in late
    assert 'value="mine"' in late
    assert re.search(r'value="node\.lost"\s+checked', late)
    again = re.search(r'name="version" value="(\d+)" id="id_version"', late)
    assert again is not None
    anna.post(path(hook), {**posted, "description": "mine", "version": again[1]})
    hook.refresh_from_db()
    assert hook.description == "mine"


def test_a_wrong_change_is_refused_beside_its_field(cast: Cast, anna: Client) -> None:
    hook = made(cast.acme)
    answer = anna.post(path(hook), {"url": "ftp://x", "events": TOLD, "version": hook.version})
    assert (answer.status_code, "Begin with https://" in text(answer)) == (422, True)


def test_off_and_on_again_and_why_it_stopped(cast: Cast, anna: Client) -> None:
    hook = made(cast.acme)
    outbox.tell("claim.active", tenant=cast.acme)
    assert "1 pending message is sent when the webhook is enabled" in act(anna, hook, "off")
    hook.refresh_from_db()
    assert not hook.enabled
    assert "The webhook is enabled; pending messages are sent now." in act(anna, hook, "on")
    Webhook.objects.update(enabled=False, disabled_reason="Its server answered 410 Gone.")
    page = text(anna.get(path(hook)))
    assert "Its server answered 410 Gone." in page
    assert 'data-state="stopped"' in page
    act(anna, hook, "on")
    hook.refresh_from_db()
    assert (hook.standing, hook.disabled_reason) == ("on", None)


def test_another_secret_is_shown_once_and_who_confirms_an_old_page_is_told(cast: Cast, anna: Client) -> None:
    hook = made(cast.acme)
    old = signing.secret(hook)
    answer = anna.post(path(hook, "rotate/"), {"version": hook.version}, follow=True)
    hook.refresh_from_db()
    assert (answer.status_code, SECRET.findall(text(answer))) == (200, [signing.secret(hook)])
    assert old not in text(answer)
    page = text(anna.get(path(hook)))
    assert "the one before signs as well until" in page
    assert "ceases to sign at once" in page
    for way in ("rotate/", "remove/", "off/"):
        late = anna.post(path(hook, way), {"version": hook.version - 1}, follow=True)
        assert "Somebody changed it while you had this page open" in text(late), way
    hook.refresh_from_db()
    assert (hook.secret_number, hook.enabled) == (2, True)


def test_a_tests_outcome_is_in_the_living_part(cast: Cast, anna: Client, receiver: Receiver) -> None:
    hook = made(cast.acme, receiver.url)
    assert "A test message is being sent" in act(anna, hook, "test")
    sending.deliver()
    receiver.answer = lambda _: (500, {})
    outbox.tell("claim.active", tenant=cast.acme, claim={"name": "<b>"})
    sending.deliver()
    part = anna.get(path(hook), headers={"HX-Request": "true"})
    shown = text(part)
    assert "<html" not in shown
    assert [state for state in re.findall(r'data-state="(\w+)"', shown) if state != "failing"] == [
        "pending",
        "delivered",
    ]
    assert "Answered 500." in shown
    assert "1 attempt in a row has failed" in shown
    assert "&quot;name&quot;: &quot;&lt;b&gt;&quot;" in shown


def test_deliveries_are_narrowed_by_the_url_and_are_files(cast: Cast, anna: Client) -> None:
    hook = made(cast.acme)
    outbox.tell("claim.active", tenant=cast.acme, claim={"name": "train"})
    outbox.tell("node.lost", tenant=cast.acme)
    WebhookDelivery.objects.filter(kind="node.lost").update(state="failed", next_attempt_at=None, error="=1+1")

    def kinds(query: str) -> list[str]:
        return [row["kind"] for row in json.loads(anna.get(path(hook, f"?format=json{query}")).content)]

    assert kinds("") == ["node.lost", "claim.active"]
    assert kinds("&state=failed") == kinds("&kind=node.lost") == ["node.lost"]
    assert kinds("&state=nonsense") == ["node.lost", "claim.active"]
    assert "Nothing matches" in text(anna.get(path(hook, "?state=delivered")))
    rows = list(csv.DictReader(io.StringIO(anna.get(path(hook, "?format=csv")).content.decode())))
    assert json.loads(rows[1]["payload"])["data"]["claim"] == {"name": "train"}
    assert rows[0]["error"] == "'=1+1"
    (row,) = json.loads(anna.get("/webhooks/?format=json").content)
    assert (row["to"], row["pending"], row["standing"]) == ("https://chat.example.net", 1, "on")
    assert "s3cret" not in anna.get("/webhooks/?format=csv").content.decode()


def test_a_message_is_sent_once_more_but_not_while_it_waits(cast: Cast, anna: Client) -> None:
    hook = made(cast.acme)
    delivery = hooks.send_test(principal=SYSTEM, hook=hook)
    again = path(hook, f"deliveries/{delivery.uid}/redeliver/?state=failed")
    assert "The delivery is pending" in text(anna.post(again, follow=True))
    WebhookDelivery.objects.update(state="failed", next_attempt_at=None, attempts=11)
    answer = anna.post(again)
    assert answer["Location"] == path(hook, "?state=failed")
    delivery.refresh_from_db()
    assert (delivery.state, delivery.attempts) == ("pending", 0)
    other = made(cast.acme)
    assert anna.post(path(other, f"deliveries/{delivery.uid}/redeliver/")).status_code == 404


def test_a_removed_one_is_gone(cast: Cast, anna: Client) -> None:
    hook = made(cast.acme)
    outbox.tell("claim.active", tenant=cast.acme)
    assert "The webhook to https://chat.example.net is removed." in act(anna, hook, "remove")
    assert not Webhook.objects.exists()
    assert anna.get(path(hook)).status_code == 404


def test_what_is_long_is_in_the_files(cast: Cast, anna: Client) -> None:
    hook = made(cast.acme)
    outbox.tell("node.lost", tenant=cast.acme, claims=["x" * 36] * 400)
    assert "Too long for a page" in text(anna.get(path(hook)))
    assert "xxxx" in anna.get(path(hook, "?format=json")).content.decode()


def test_one_that_is_stopped_or_fails_for_long_needs_attention(cast: Cast, browser: SignIn) -> None:
    hook = made(cast.acme)
    now = timezone.now()
    for facts, says in (
        ({"failing_since": now - timedelta(minutes=5)}, None),
        ({"failing_since": now - timedelta(hours=2)}, "The webhook to https://chat.example.net fails"),
        ({"enabled": False, "disabled_reason": "Its server answered 410 Gone."}, "answered 410 Gone."),
        ({"disabled_reason": None}, None),
    ):
        Webhook.objects.update(**facts)
        pages = {name: text(browser(name).get("/")) for name in ("olga", "anna", "max", "gus")}
        told = [name for name, page in pages.items() if path(hook) in page and (says is None or says in page)]
        assert told == (["olga", "anna"] if says else []), says


def test_making_one_is_found_by_who_may(cast: Cast, browser: SignIn) -> None:
    found = {name: text(browser(name).get("/search/?q=webhook")) for name in ("anna", "max")}
    assert "/new-webhook/" in found["anna"]
    assert "webhook/" not in found["max"]


CHAT = "https://hooks.slack.com/services/T000/B000/verysecretXYZ4"


def test_a_chat_is_made_without_a_secret_and_its_url_is_kept(cast: Cast, anna: Client) -> None:
    posted = {"tenant": "acme", "format": "slack", "url": CHAT, "events": TOLD}
    page = text(anna.post("/new-webhook/", posted, follow=True))
    assert "The webhook is created. Send a test" in page
    hook = Webhook.objects.get()
    assert (hook.format, hook.url) == ("slack", CHAT)
    assert "https://hooks.slack.com/…XYZ4" in page
    assert ("verysecret" in page, "whsec_" in page, 'data-opens="rotate"' in page) == (False, False, False)
    hook.refresh_from_db()
    anna.post(path(hook), {"url": "", "description": "chat", "events": TOLD, "version": hook.version})
    hook.refresh_from_db()
    assert (hook.url, hook.description) == (CHAT, "chat")
    files = anna.get("/webhooks/?format=json").content.decode()
    assert ('"slack"' in files, "verysecret" in files) == (True, False)


def test_a_chats_message_is_shown_as_it_is_sent(cast: Cast, anna: Client) -> None:
    hook = made(cast.acme, CHAT, format="slack")
    assert "A test message is being sent" in act(anna, hook, "test")
    assert "&quot;type&quot;: &quot;header&quot;" in text(anna.get(path(hook)))


def test_events_without_an_alert_are_refused_beside_their_field(cast: Cast, anna: Client) -> None:
    posted = {"tenant": "acme", "format": "alertmanager", "url": "https://a.example.org/api/v2/alerts", "events": TOLD}
    answer = anna.post("/new-webhook/", posted)
    assert (answer.status_code, "no alert begins with it" in text(answer)) == (422, True)
