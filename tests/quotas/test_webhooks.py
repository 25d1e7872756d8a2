"""Webhooks: recorded messages, and their delivery to a server."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, current_app
from django.db import transaction

from apps.quotas.models import AuditEvent, Tenant, Webhook, WebhookDelivery
from apps.quotas.principals import SYSTEM
from apps.quotas.services.webhooks import hooks, outbox, posting, sending
from tests.cast import Cast
from tests.receiver import Message, Receiver, receive
from tests.scheduling.clock import Clock

GUIDE = Path(__file__).resolve().parent.parent.parent / "docs" / "webhooks.md"
ACTIVE = "claim.active"


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    settings.WEBHOOK_NETWORKS = [ip_network("127.0.0.0/8")]
    with receive() as it:
        yield it


def hook_of(tenant: Tenant | None, url: str, *events: str) -> tuple[Webhook, str]:
    hook, secret = hooks.create(principal=SYSTEM, tenant=tenant, url=url, events=events or (ACTIVE,))
    assert secret is not None
    return hook, secret


def only_delivery() -> WebhookDelivery:
    return WebhookDelivery.objects.get()


@pytest.fixture
def verify() -> Callable[..., bool]:
    """Verify a signature by the recipe of docs/webhooks.md."""
    recipe = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert recipe is not None
    names: dict[str, Any] = {}
    exec(recipe[1], names)  # noqa: S102 - our own page
    found: Callable[..., bool] = names["verify"]
    return found


def test_a_message_is_verified_by_the_recipe_of_the_guide(
    cast: Cast, receiver: Receiver, verify: Callable[..., bool]
) -> None:
    _, secret = hook_of(cast.acme, receiver.url)
    outbox.tell(ACTIVE, tenant=cast.acme, claim={"name": "träin"})
    assert sending.deliver() == 1
    (message,) = receiver.came
    assert json.loads(message.body)["data"] == {"tenant": "acme", "claim": {"name": "träin"}}
    assert verify(secret, message.headers, message.body)
    assert not verify(secret, message.headers, message.body + b" ")
    assert not verify("whsec_" + "A" * 43 + "=", message.headers, message.body)
    assert not verify(secret, message.headers | {"webhook-id": "msg_other"}, message.body)
    assert not verify(secret, message.headers, message.body, tolerance_seconds=-1)
    delivery = only_delivery()
    assert (delivery.state, delivery.status_code, delivery.attempts) == ("delivered", 204, 1)


def test_after_a_rotation_both_secrets_sign_for_a_day(
    clock: Clock, cast: Cast, receiver: Receiver, verify: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: clock().timestamp())
    hook, first = hook_of(cast.acme, receiver.url)
    hook, second = hooks.rotate(principal=SYSTEM, hook=hook)
    assert first != second
    for hours, valid in ((1, [True, True]), (24, [False, True])):
        clock.advance(hours=hours)
        outbox.tell(ACTIVE, tenant=cast.acme)
        sending.deliver()
        message = receiver.came.pop()
        assert [verify(secret, message.headers, message.body) for secret in (first, second)] == valid


def test_a_former_secret_key_signs_as_long_as_it_is_kept(
    cast: Cast, receiver: Receiver, verify: Callable[..., bool], settings: Any
) -> None:
    _, secret = hook_of(cast.acme, receiver.url)
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another-key-" * 5
    outbox.tell(ACTIVE, tenant=cast.acme)
    sending.deliver()
    assert verify(secret, receiver.came[0].headers, receiver.came[0].body)


def test_what_is_taken_back_is_told_to_nobody(cast: Cast, receiver: Receiver) -> None:
    hook_of(cast.acme, receiver.url)
    with transaction.atomic():
        assert outbox.tell(ACTIVE, tenant=cast.acme) == 1
        transaction.set_rollback(True)
    sending.deliver()
    assert receiver.came == []


def test_nothing_is_lost_while_redis_is_away(real_cast: Cast, receiver: Receiver) -> None:
    hook_of(real_cast.acme, receiver.url)
    usual = current_app._get_current_object()
    Celery("away", broker="redis://127.0.0.1:1/0", set_as_current=False).set_current()
    try:
        outbox.tell(ACTIVE, tenant=real_cast.acme)
    finally:
        usual.set_current()
    assert sending.deliver() == 1
    assert len(receiver.came) == 1


def test_a_failure_is_tried_again_later_under_the_same_id(clock: Clock, cast: Cast, receiver: Receiver) -> None:
    hook, _ = hook_of(cast.acme, receiver.url)
    receiver.answer = lambda _: (500, {})
    outbox.tell(ACTIVE, tenant=cast.acme)
    assert [sending.deliver(), sending.deliver()] == [1, 0]
    delivery = only_delivery()
    assert (delivery.state, delivery.status_code, delivery.error) == ("pending", 500, "Answered 500.")
    hook.refresh_from_db()
    assert (hook.failures, hook.failing_since, hook.version) == (1, clock.now, 1)
    receiver.answer = lambda _: (200, {})
    clock.advance(seconds=6)
    assert sending.deliver() == 1
    first, second = receiver.came
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert int(second.headers["webhook-timestamp"]) == int(first.headers["webhook-timestamp"]) + 6
    hook.refresh_from_db()
    assert (only_delivery().state, hook.failures, hook.failing_since) == ("delivered", 0, None)


def test_retry_after_is_kept_to(clock: Clock, cast: Cast, receiver: Receiver) -> None:
    hook_of(cast.acme, receiver.url)
    receiver.answer = lambda _: (503, {"Retry-After": "600"})
    outbox.tell(ACTIVE, tenant=cast.acme)
    sending.deliver()
    clock.advance(seconds=599)
    assert sending.deliver() == 0
    clock.advance(seconds=62)
    assert sending.deliver() == 1


def test_after_the_last_attempt_it_is_given_up_and_can_be_sent_by_hand(
    clock: Clock, cast: Cast, receiver: Receiver
) -> None:
    hook, _ = hook_of(cast.acme, receiver.url)
    outbox.tell(ACTIVE, tenant=cast.acme)
    receiver.answer = lambda _: (404, {})
    again = f"webhooks/{hook.uid}/deliveries/{only_delivery().uid}/redeliver/"
    assert cast.anna.post(again).code == "delivery-pending"
    for _ in sending.WAITS:
        sending.deliver()
        Webhook.objects.update(failing_since=clock.now)  # or it would be disabled before
        clock.advance(hours=23)
    sending.deliver()
    assert only_delivery().state == "failed"
    assert len(receiver.came) == len(sending.WAITS) + 1
    receiver.answer = lambda _: (200, {})
    assert cast.anna.post(again).body["state"] == "pending"
    clock.advance(hours=1)
    sending.deliver()
    listed = cast.anna.get(f"webhooks/{hook.uid}/deliveries/?state=delivered").body["results"]
    assert [(row["kind"], row["attempts"], row["payload"]["type"]) for row in listed] == [(ACTIVE, 1, ACTIVE)]


def test_a_long_failure_disables_and_enabling_sends_what_is_pending(
    clock: Clock, cast: Cast, receiver: Receiver
) -> None:
    hook, _ = hook_of(cast.acme, receiver.url)
    receiver.answer = lambda _: (500, {})
    outbox.tell(ACTIVE, tenant=cast.acme)
    sending.deliver()
    clock.advance(days=3)
    sending.deliver()
    shown = cast.anna.get(f"webhooks/{hook.uid}/").body
    assert (shown["enabled"], "has failed since" in shown["disabled_reason"]) == (False, True)
    assert AuditEvent.objects.get(action="webhook.disable").tenant == cast.acme
    assert outbox.tell(ACTIVE, tenant=cast.acme) == 0
    clock.advance(days=1)
    assert sending.deliver() == 0
    receiver.answer = lambda _: (200, {})
    changed = cast.anna.patch(f"webhooks/{hook.uid}/", {"enabled": True}).body
    assert (changed["failures"], changed["disabled_reason"]) == (0, None)
    assert sending.deliver() == 1


def test_who_is_gone_is_told_nothing_more(cast: Cast, receiver: Receiver) -> None:
    hook, _ = hook_of(cast.acme, receiver.url)
    receiver.answer = lambda _: (410, {})
    outbox.tell(ACTIVE, tenant=cast.acme)
    sending.deliver()
    hook.refresh_from_db()
    assert (hook.enabled, hook.disabled_reason) == (False, "Its server answered 410 Gone.")


def test_one_that_hangs_holds_up_nobody_else(cast: Cast, receiver: Receiver) -> None:
    others_were_told = threading.Event()

    def answer(message: Message) -> tuple[int, dict[str, str]]:
        if message.path == "/hangs":
            return (200 if others_were_told.wait(10) else 500), {}
        if len([item for item in receiver.came if item.path == "/hook"]) == 3:
            others_were_told.set()
        return 200, {}

    receiver.answer = answer
    hook_of(cast.acme, receiver.url.replace("/hook", "/hangs"))
    hook_of(cast.acme, receiver.url)
    for _ in range(3):
        outbox.tell(ACTIVE, tenant=cast.acme)
    sending.deliver()
    assert set(WebhookDelivery.objects.values_list("state", flat=True)) == {"delivered"}


def test_who_never_answers_has_its_time_and_no_more(
    cast: Cast, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "SECONDS", 0.2)
    over = threading.Event()

    def answer(_: Message) -> tuple[int, dict[str, str]]:
        over.wait(10)
        return 200, {}

    receiver.answer = answer
    hook_of(cast.acme, receiver.url)
    outbox.tell(ACTIVE, tenant=cast.acme)
    sending.deliver()
    over.set()
    assert only_delivery().error == "No answer within 0.2 s."


def test_what_a_killed_sender_had_taken_is_sent_again(
    clock: Clock, cast: Cast, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook_of(cast.acme, receiver.url)
    outbox.tell(ACTIVE, tenant=cast.acme)
    with monkeypatch.context() as dying:
        dying.setattr(posting, "post", lambda *_: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            sending.deliver()
    assert sending.deliver() == 0
    clock.advance(seconds=61)
    assert sending.deliver() == 1
    assert len(receiver.came) == 1


def test_a_tenant_hears_of_its_own_and_the_platform_of_all(cast: Cast, receiver: Receiver) -> None:
    for name, tenant in {"acme": cast.acme, "globex": cast.globex, "platform": None}.items():
        hook_of(tenant, receiver.url.replace("/hook", f"/{name}"), ACTIVE, "node.lost")
    outbox.tell(ACTIVE, tenant=cast.acme)
    outbox.tell("claim.failed", tenant=cast.acme)
    outbox.tell("node.lost", tenant=None)
    outbox.tell("node.lost", tenant=cast.globex, platform=False)
    sending.deliver()
    heard = sorted(f"{message.path} {json.loads(message.body)['data']['tenant']}" for message in receiver.came)
    assert heard == ["/acme acme", "/globex globex", "/platform None", "/platform acme"]


def test_a_webhook_that_is_removed_meanwhile_undoes_nothing(cast: Cast, receiver: Receiver) -> None:
    hook, _ = hook_of(cast.acme, receiver.url)
    outbox.write([hook.pk + 1000], ACTIVE, {})
    assert sending.deliver() == 0


def test_the_secret_is_shown_once_and_nowhere_kept(cast: Cast) -> None:
    body = {"tenant": "acme", "url": "https://hooks.example.org/secret-path", "events": [ACTIVE]}
    made = cast.anna.post("webhooks/", body, Idempotency_Key="k")
    secret = made.body["secret"]
    assert secret.startswith("whsec_")
    assert made.headers["Cache-Control"] == "no-store"
    assert cast.anna.post("webhooks/", body, Idempotency_Key="k").body["secret"] is None
    assert "secret" not in cast.anna.get(f"webhooks/{made.body['uid']}/").body
    row = Webhook.objects.values().get()
    assert secret.removeprefix("whsec_") not in str(row)
    assert "secret-path" not in str(list(AuditEvent.objects.values()))


def test_only_admins_see_their_tenants_webhooks(cast: Cast) -> None:
    for tenant in (cast.acme, cast.globex, None):
        hook_of(tenant, "https://hooks.example.org/")
    counts = {who: len(api.get("webhooks/").body["results"]) for who, api in vars(cast).items() if who in PEOPLE}
    assert counts == {"olga": 3, "anna": 1, "max": 0, "vera": 0, "gus": 1}
    body = {"url": "https://hooks.example.org/", "events": [ACTIVE]}
    assert cast.anna.post("webhooks/", body).code == "role-missing"
    assert cast.max.post("webhooks/", {**body, "tenant": "acme"}).code == "role-missing"


PEOPLE = ("olga", "anna", "max", "vera", "gus")


def test_a_tenant_has_only_so_many(cast: Cast) -> None:
    for _ in range(hooks.MOST):
        hook_of(cast.acme, "https://hooks.example.org/")
    with pytest.raises(hooks.TooManyWebhooks):
        hook_of(cast.acme, "https://hooks.example.org/")
    hook_of(cast.globex, "https://hooks.example.org/")
