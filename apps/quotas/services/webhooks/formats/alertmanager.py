"""Alerts of Prometheus Alertmanager: POST /api/v2/alerts, by its openapi.yaml of version 2.

An alert is named by its labels: the event that ends it has equal ones. An alert that nothing ends lasts an hour.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from apps.quotas.models import EventKind
from apps.quotas.models.webhook import TEST
from apps.quotas.services.webhooks.formats.words import Event, plain, words_of

PATH = "/api/v2/alerts"
# Alertmanager ends an alert without an end after its resolve_timeout, five minutes by default.
HELD, MOMENT, LEAST = timedelta(days=7), timedelta(hours=1), timedelta(minutes=10)
GONE: Final = (EventKind.CLAIM_RELEASED, EventKind.CLAIM_FAILED)
STOPPED: Final = (*GONE, EventKind.CLAIM_SUSPENDED, EventKind.CLAIM_PREEMPTED)
# Kinds that begin an alert, with those that end it.
ENDS: Final[dict[str, tuple[str, ...]]] = {
    EventKind.CLAIM_FAILED: (EventKind.CLAIM_ACTIVE, EventKind.CLAIM_RELEASED),
    EventKind.CLAIM_SUSPENDED: (EventKind.CLAIM_RESUMED, *GONE),
    EventKind.CLAIM_SUSPEND_FAILED: (),
    EventKind.CLAIM_OVER_QUOTA: (EventKind.CLAIM_ACTIVE, *GONE),
    EventKind.CLAIM_PREEMPTION_NOTICE: (EventKind.CLAIM_PREEMPTION_SPARED, *STOPPED),
    EventKind.CLAIM_PREEMPTED: (EventKind.CLAIM_ACTIVE, *GONE),
    EventKind.CLAIM_IDLE: (EventKind.CLAIM_AWAKE, *STOPPED),
    EventKind.CLAIM_UNREACHABLE: (EventKind.CLAIM_REACHABLE, *GONE),
    EventKind.CLAIM_BELOW_GUARANTEE: (EventKind.CLAIM_GUARANTEE_MET, *STOPPED),
    EventKind.JOB_FAILED: (),
    EventKind.QUOTA_EXCEEDED: (),
    EventKind.QUOTA_REQUEST_DECIDED: (),
    EventKind.BUDGET_THRESHOLD: (),
    EventKind.RESERVATION_BEGAN: (EventKind.RESERVATION_ENDED,),
    EventKind.NODE_LOST: (EventKind.NODE_RETURNED,),
    TEST: (),
}


def wants(chosen: Iterable[str], kind: str) -> bool:
    """Return True if an event of this kind begins or ends an alert of the chosen kinds."""
    return any(kind == begin or kind in ENDS.get(begin, ()) for begin in chosen)


def related(kind: str) -> set[str]:
    """Return the kinds of events that may say more of the alerts that an event of this kind begins or ends."""
    begins = _begins(kind)
    return {*begins, *(end for begin in begins for end in ENDS[begin])}


def subject_of(data: Any) -> tuple[str, str] | None:
    """Return the label and value that name what the alerts are about; None if no later event is about the same."""
    for part in ("claim", "reservation"):
        if isinstance(about := data.get(part), dict):
            return part, str(about.get("uid"))
    return ("node", str(data["node"])) if data.get("node") else None


def message(events: Sequence[Event], chosen: Iterable[str], now: datetime) -> list[dict[str, Any]]:
    """Return the body of the POST for the first of the events; the later ones are of the same subject.

    An alert is sent in its latest state: a retried message neither begins again what has ended, nor ends what has begun
    anew. Ends are sent for kinds that are not chosen, too: Alertmanager ignores ends of unknown alerts.
    """
    alerts = []
    for begin in _begins(events[0].kind):
        last = [event for event in events if event.kind == begin or event.kind in ENDS[begin]][-1]
        if last.kind != begin or begin in (*chosen, TEST):
            alerts.append(_alert(begin, last, now))
    return alerts


def _begins(kind: str) -> list[str]:
    return [begin for begin, ends in ENDS.items() if kind == begin or kind in ends]


def _alert(begin: str, event: Event, now: datetime) -> dict[str, Any]:
    words = words_of(event)
    alert: dict[str, Any] = {"labels": _labels(begin, event)}
    if event.kind == begin:
        alert |= {"startsAt": event.at.isoformat(), "endsAt": _end(begin, event, now).isoformat()}
        alert["annotations"] = {"summary": words.title, "description": words.sentence} | {
            label.lower().replace(" ", "_"): value for label, value in words.facts
        }
    else:
        alert |= {"endsAt": event.at.isoformat(), "annotations": {"summary": words.title}}
    return alert | ({"generatorURL": words.url} if words.url else {})


def _end(begin: str, event: Event, now: datetime) -> datetime:
    if ENDS[begin]:
        return max(event.at, now) + HELD
    if begin == EventKind.BUDGET_THRESHOLD and (text := event.data.get("ends_at")):
        return datetime.fromisoformat(text)
    return max(event.at + MOMENT, now + LEAST)


def _labels(begin: str, event: Event) -> dict[str, str]:
    """Return the labels: facts that stay the same for as long as the alert lasts, which names do not."""
    data = event.data
    name = "".join(part.capitalize() for part in begin.replace("_", ".").split("."))
    severity = words_of(Event(begin, event.at, data)).severity
    job, claim, reservation = (data.get(part) or {} for part in ("job", "claim", "reservation"))
    facts = {
        "tenant": data.get("tenant"),
        "pool": data.get("pool") or job.get("pool") or claim.get("pool") or reservation.get("pool"),
        "job": job.get("uid"),
        "claim": claim.get("uid"),
        "reservation": reservation.get("uid"),
        "node": data.get("node") if begin.startswith("node.") else None,
        "resource": data.get("resource"),
        "budget": data.get("budget"),
        "threshold_percent": data.get("threshold_percent"),
        "request": (data.get("request") or {}).get("uid"),
        "webhook": data.get("webhook"),
    }
    shown = {label: plain(value) for label, value in facts.items() if value is not None}
    return {"alertname": f"Gpucloud{name}", "severity": severity, **shown}
