"""Formats of webhooks: each message against the published schema, hostile texts, and secret URLs."""

import json
import logging
import re
import sysconfig
from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from slack_sdk.models.blocks import Block

from apps.quotas.models import AuditEvent, EventKind, Tenant, Webhook, WebhookDelivery
from apps.quotas.models.webhook import TEST, WebhookFormat
from apps.quotas.principals import SYSTEM
from apps.quotas.services.webhooks import hooks, outbox, sending
from apps.quotas.services.webhooks.addresses import UrlRefused
from apps.quotas.services.webhooks.formats import alertmanager, rendering, slack, teams
from apps.quotas.services.webhooks.formats.words import FACTS, TITLES, Event, words_of
from tests.cast import Cast
from tests.receiver import Receiver, receive
from tests.scheduling.clock import Clock

UID = "0198c1ab-0000-7000-8000-000000000001"
AT = datetime(2026, 7, 1, 9, 30, tzinfo=UTC)
HOSTILE = "<!channel> <https://evil.example|pay> *b* [x](https://evil.example) <at>all</at>\r\nBcc: a@b\u202e :bomb: &"
# Of a package of dev requirements: Microsoft's schema as it publishes it.
CARDS = Path(sysconfig.get_paths()["purelib"]) / "adaptive_cards" / "schemas" / f"schema-{teams.VERSION}.json"
# The facts of postableAlerts in Alertmanager's api/v2/openapi.yaml (0.33): types, formats, required parts.
LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
ALERTS = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["labels"],
        "additionalProperties": False,
        "properties": {
            "labels": LABELS,
            "annotations": LABELS,
            "startsAt": {"type": "string", "format": "date-time"},
            "endsAt": {"type": "string", "format": "date-time"},
            "generatorURL": {"type": "string", "format": "uri"},
        },
    },
}
SLACK_URL = "https://hooks.slack.com/services/T000/B000/verysecretXYZ4"


def event(kind: str, name: str = "train-7", **more: Any) -> Event:
    """Return an event of this kind with all the facts that any kind has."""
    share = {"gpu_count": 1, "core_request": 30, "memory_mib": 8192, "pool": "default"}
    moment = AT.isoformat()
    data: dict[str, Any] = {"tenant": "acme", "why": name}
    if kind.startswith("claim."):
        data |= {"claim": {"uid": UID, "name": name, **share}, "at": moment, "since": moment, "release_at": None}
    elif kind.startswith("job."):
        data |= {
            "job": {"uid": UID, "name": name, "pool": "default", "kind": "job", "exit_code": 3},
            "why": "exit code 3",
        }
    elif kind.startswith("reservation."):
        data |= {"reservation": {"uid": UID, "name": name, **share}}
    elif kind.startswith("node."):
        data |= {"node": "gpu-1", "pool": "default", "last_seen_at": moment, "claims": [UID] * 3}
    elif kind == EventKind.BUDGET_THRESHOLD:
        data |= {"budget": 7, "threshold_percent": 80, "gpu_hours": "100", "gpu_hours_spent": 81.5, "ends_at": moment}
    elif kind == EventKind.QUOTA_REQUEST_DECIDED:
        data |= {"request": {"uid": UID, "state": "approved", "words": name}, "granted_amount": 3}
    elif kind == EventKind.QUOTA_EXCEEDED:
        data |= {"quota": 1, "resource": "vgpus", "pool": None, "hard": 1, "used": 2, "excess": 1}
    return Event(kind, AT, {**data, **more})


KINDS = [*EventKind.values, TEST]
NAMES = ["train-7", HOSTILE, "n" * 200, "x" * 5000, "", "Ünïcödé 训练 🚀"]


@pytest.fixture(params=["", "https://gpus.example.org"])
def public_url(request: Any, settings: Any) -> str:
    settings.PUBLIC_URL = request.param
    url: str = request.param
    return url


def test_every_kind_has_words() -> None:
    assert set(TITLES) == set(KINDS)
    assert len(FACTS) <= slack.MOST_FIELDS


@pytest.mark.parametrize("name", NAMES)
def test_slack_takes_every_message(name: str, public_url: str) -> None:
    for kind in KINDS:
        message = slack.message(words_of(event(kind, name)))
        assert len(message["blocks"]) <= 50
        assert len(message["text"]) <= 4000
        for block in message["blocks"]:
            parsed = Block.parse(block)
            assert parsed is not None
            parsed.validate_json()
            assert json.loads(json.dumps(parsed.to_dict())) == block, "a key that Slack does not know"
            assert all(0 < len(field["text"]) <= 2000 for field in block.get("fields", []))
        assert ("actions" in {block["type"] for block in message["blocks"]}) is bool(public_url)


def test_slack_parses_nothing_of_a_tenant() -> None:
    message = slack.message(words_of(event("claim.idle", HOSTILE)))
    kinds = set(re.findall(r'"type": "([a-z_]+)"', json.dumps(message["blocks"])))
    assert kinds == {"header", "section", "plain_text"}, "no mrkdwn"
    assert '"emoji": true' not in json.dumps(message)
    assert not set(message["text"]) & set("<>\r\n\u202e")
    assert (message["mrkdwn"], message["unfurl_links"]) == (False, False)
    assert "&lt;!channel&gt;" in message["text"]


@pytest.mark.parametrize("name", NAMES)
def test_teams_takes_every_card(name: str, public_url: str) -> None:
    validator = jsonschema.Draft6Validator(json.loads(CARDS.read_text()))
    for kind in KINDS:
        message = teams.message(words_of(event(kind, name)))
        (attachment,) = message["attachments"]
        validator.validate(attachment["content"])
        assert (message["type"], attachment["contentType"]) == ("message", teams.CARD)
        assert len(json.dumps(message)) < 28_000, "Teams refuses more than 28 KB"
        # Only text runs: a TextBlock or a FactSet would parse Markdown.
        assert {element["type"] for element in attachment["content"]["body"]} == {"RichTextBlock"}


def test_the_schema_of_cards_refuses_what_is_wrong() -> None:
    card = teams.message(words_of(event(TEST)))["attachments"][0]["content"]
    card["body"][0]["inlines"][0]["weight"] = "Heavy"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft6Validator(json.loads(CARDS.read_text())).validate(card)


@pytest.mark.parametrize("name", NAMES)
def test_alertmanager_takes_every_alert(name: str, public_url: str) -> None:
    validator = jsonschema.Draft7Validator(ALERTS, format_checker=jsonschema.FormatChecker())
    for kind in KINDS:
        alerts = alertmanager.message([event(kind, name)], EventKind.values, AT)
        validator.validate(alerts)
        assert bool(alerts) is bool(alertmanager.related(kind)), kind
        for alert in alerts:
            assert all(re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", label) for label in alert["labels"])
            assert {"alertname", "severity"} <= alert["labels"].keys()
            assert all(alert["labels"].values())
            assert name not in alert["labels"].values() or not name, "a name may change while the alert lasts"


def alerts(*kinds: str, chosen: list[str] | None = None) -> dict[str, bool]:
    """Return each alert's name, and whether it fires."""
    events = [event(kind) for kind in kinds]
    return {
        alert["labels"]["alertname"]: "startsAt" in alert
        for alert in alertmanager.message(events, chosen or EventKind.values, AT)
    }


def test_what_ends_an_alert_has_its_labels() -> None:
    for begin, ends in alertmanager.ENDS.items():
        (fires,) = [
            alert["labels"] for alert in alertmanager.message([event(begin)], [begin], AT) if "startsAt" in alert
        ]
        for end in ends:
            ended = [alert["labels"] for alert in alertmanager.message([event(end)], [begin], AT)]
            assert fires in ended, (begin, end)


def test_an_alert_is_sent_in_its_latest_state() -> None:
    assert alerts("claim.idle") == {"GpucloudClaimIdle": True}
    assert alerts("claim.idle", "claim.awake") == {"GpucloudClaimIdle": False}
    assert alerts("claim.awake", "claim.idle") == {"GpucloudClaimIdle": True}
    assert alerts("claim.idle", "claim.awake", "claim.idle") == {"GpucloudClaimIdle": True}
    assert alerts("claim.released", chosen=["claim.idle"])["GpucloudClaimIdle"] is False
    assert "GpucloudClaimSuspended" not in {
        name for name, fires in alerts("claim.suspended", chosen=["claim.idle"]).items() if fires
    }


def test_ends_of_chosen_alerts_are_sent_without_being_chosen() -> None:
    assert rendering.wants("alertmanager", ["claim.idle"], "claim.awake")
    assert not rendering.wants("alertmanager", ["claim.idle"], "node.lost")
    assert not rendering.wants("slack", ["claim.idle"], "claim.awake")


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    settings.WEBHOOK_NETWORKS = [ip_network("127.0.0.0/8")]
    with receive() as it:
        yield it


def hook_of(tenant: Tenant | None, url: str, form: str, *events: str) -> Webhook:
    return hooks.create(principal=SYSTEM, tenant=tenant, url=url, format=form, events=events or ("claim.idle",))[0]


def tell(tenant: Tenant, kind: str) -> None:
    outbox.tell(kind, tenant=tenant, claim={"uid": UID, "name": "train-7", "pool": "default"})


def test_a_retried_alert_does_not_begin_again(cast: Cast, receiver: Receiver, clock: Clock) -> None:
    hook_of(cast.acme, receiver.url.replace("/hook", "/api/v2/alerts"), "alertmanager")
    receiver.answer = lambda _: (503, {})
    tell(cast.acme, "claim.idle")
    sending.deliver()
    receiver.answer = lambda _: (200, {})
    clock.advance(seconds=6)
    tell(cast.acme, "claim.awake")
    sending.deliver()
    fires = ["startsAt" in alert for message in receiver.came for alert in json.loads(message.body)]
    assert fires == [True, False, False]
    assert not any(name.startswith("webhook-") for message in receiver.came for name in message.headers)


def test_a_server_that_names_a_time_is_left_alone(cast: Cast, receiver: Receiver, clock: Clock) -> None:
    hook_of(cast.acme, receiver.url, "slack")
    receiver.answer = lambda _: (429, {"Retry-After": "600"})
    tell(cast.acme, "claim.idle")
    tell(cast.acme, "claim.idle")
    assert sending.deliver() == 1
    clock.advance(seconds=590)
    assert sending.deliver() == 0
    receiver.answer = lambda _: (200, {})
    clock.advance(seconds=80)
    assert sending.deliver() == 2


def test_an_answer_is_told_with_advice(cast: Cast, receiver: Receiver) -> None:
    hook_of(cast.acme, receiver.url, "slack")
    receiver.answer = lambda _: (404, {})
    tell(cast.acme, "claim.idle")
    sending.deliver()
    assert WebhookDelivery.objects.get().error == f"Answered 404. {rendering.ADVICE[WebhookFormat.SLACK, 404]}"


def test_a_secret_url_is_written_and_not_read(cast: Cast) -> None:
    body = {"tenant": "acme", "url": SLACK_URL, "format": "slack", "events": ["claim.idle"]}
    made = cast.anna.post("webhooks/", body, Idempotency_Key="k")
    assert (made.status, made.body["secret"]) == (201, None)
    shown = "https://hooks.slack.com/…XYZ4"
    uid = made.body["uid"]
    assert [made.body["url"], cast.anna.get(f"webhooks/{uid}/").body["url"]] == [shown, shown]
    changed = cast.anna.patch(f"webhooks/{uid}/", {"url": SLACK_URL + "A", "description": "chat"})
    assert changed.body["url"] == "https://hooks.slack.com/…YZ4A"
    texts = [str(made.body), str(changed.body), str(list(AuditEvent.objects.values())), str(Webhook.objects.get())]
    assert not any("verysecret" in text for text in texts)
    assert cast.anna.post(f"webhooks/{uid}/rotate/").code == "webhook-unsigned"


def test_the_format_never_changes(cast: Cast) -> None:
    """Otherwise another admin could make a secret URL readable."""
    hook = hook_of(cast.acme, SLACK_URL, "slack")
    assert cast.anna.patch(f"webhooks/{hook.uid}/", {"format": "gpucloud"}).status == 400
    hook.refresh_from_db()
    assert hook.format == "slack"


def test_no_log_has_the_url(cast: Cast, receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    hook_of(cast.acme, receiver.url + "/verysecret", "teams")
    with caplog.at_level(logging.INFO):
        tell(cast.acme, "claim.idle")
        sending.deliver()
    assert len(receiver.came) == 1
    assert "verysecret" not in caplog.text


def test_wrong_urls_and_events_are_refused_with_what_to_do(cast: Cast) -> None:
    asked: dict[str, Any] = {"tenant": "acme", "events": ["claim.idle"]}
    for form, url, words in (
        ("teams", "https://acme.webhook.office.com/webhookb2/x", "retired"),
        ("alertmanager", "https://alerts.example.org/", "/api/v2/alerts"),
        ("slack", "ftp://x", "https://"),
    ):
        answer = cast.anna.post("webhooks/", {**asked, "format": form, "url": url})
        assert (answer.code, words in answer.body["detail"]) == ("webhook-url", True), form
    alerts_url = "https://alerts.example.org/api/v2/alerts"
    asked |= {"url": alerts_url, "events": ["claim.active"]}
    answer = cast.anna.post("webhooks/", {**asked, "format": "alertmanager"})
    assert (answer.code, "claim.active" in answer.body["detail"]) == ("webhook-events", True)
    assert cast.anna.post("webhooks/", {**asked, "format": "pager"}).status == 400
    hook = hook_of(cast.acme, alerts_url, "alertmanager")
    for change in ({"events": ["claim.active"]}, {"url": "https://alerts.example.org/"}):
        assert cast.anna.patch(f"webhooks/{hook.uid}/", change).status == 422
    with pytest.raises(UrlRefused):
        hook_of(cast.acme, "https://alerts.example.org/api/v1/alerts", "alertmanager")


def test_a_delivery_shows_event_and_message(cast: Cast) -> None:
    hook = hook_of(cast.acme, SLACK_URL, "slack")
    made = cast.anna.post(f"webhooks/{hook.uid}/test/").body
    assert (made["payload"]["type"], made["message"]["blocks"][0]["type"]) == (TEST, "header")
    own = hook_of(cast.acme, SLACK_URL, "gpucloud")
    assert cast.anna.post(f"webhooks/{own.uid}/test/").body["message"] is None


def test_a_broken_address_is_told_in_words(cast: Cast, settings: Any) -> None:
    settings.WEBHOOK_NETWORKS = [ip_network("127.0.0.0/8")]
    hook = hook_of(cast.acme, "http://127.0.0.1:1/services/verysecret", "slack")
    hooks.send_test(principal=SYSTEM, hook=hook)
    sending.deliver()
    assert WebhookDelivery.objects.get().error == "Nothing listens on port 1 of 127.0.0.1."
