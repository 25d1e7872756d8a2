"""An event in words: title, sentence and facts, shared by every format that people read."""

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.urls import NoReverseMatch, reverse

from apps.quotas.models import EventKind
from apps.quotas.models.webhook import TEST

INFO, WARNING, CRITICAL = "info", "warning", "critical"
# Most characters of one value: names have 200 at most, reasons are cut.
MOST: Final = 300
Data = Mapping[str, Any]

# Title and severity of each kind; `{0}`: the subject's name.
TITLES: Final[dict[str, tuple[str, str]]] = {
    EventKind.CLAIM_ACTIVE: ("Claim {0} is in force", INFO),
    EventKind.CLAIM_FAILED: ("Claim {0} could not be put in force", CRITICAL),
    EventKind.CLAIM_RELEASED: ("Claim {0} is released", INFO),
    EventKind.CLAIM_SUSPENDED: ("Claim {0} is suspended", WARNING),
    EventKind.CLAIM_RESUMED: ("Claim {0} is resumed", INFO),
    EventKind.CLAIM_MOVED: ("Claim {0} was moved", INFO),
    EventKind.CLAIM_SUSPEND_FAILED: ("Claim {0} could not be suspended, resumed or moved", WARNING),
    EventKind.CLAIM_OVER_QUOTA: ("Claim {0} waits for quota", WARNING),
    EventKind.CLAIM_PREEMPTION_NOTICE: ("Claim {0} will lose its GPUs", CRITICAL),
    EventKind.CLAIM_PREEMPTION_SPARED: ("Claim {0} may stay", INFO),
    EventKind.CLAIM_PREEMPTED: ("Claim {0} is preempted", CRITICAL),
    EventKind.CLAIM_IDLE: ("Claim {0} is idle", WARNING),
    EventKind.CLAIM_AWAKE: ("Claim {0} is idle no longer", INFO),
    EventKind.CLAIM_UNREACHABLE: ("The node of claim {0} is lost", CRITICAL),
    EventKind.CLAIM_REACHABLE: ("The node of claim {0} is back", INFO),
    EventKind.CLAIM_BELOW_GUARANTEE: ("Claim {0} gets less compute than its request", WARNING),
    EventKind.CLAIM_GUARANTEE_MET: ("Claim {0} gets its requested compute again", INFO),
    EventKind.JOB_SUCCEEDED: ("Job {0} has succeeded", INFO),
    EventKind.JOB_FAILED: ("Job {0} has failed", WARNING),
    EventKind.JOB_STOPPED: ("Job {0} was stopped", INFO),
    EventKind.QUOTA_EXCEEDED: ("A quota of {0} is below its use", WARNING),
    EventKind.QUOTA_REQUEST_DECIDED: ("A quota request was answered: {0}", INFO),
    EventKind.BUDGET_THRESHOLD: ("{0} of a budget are spent", WARNING),
    EventKind.RESERVATION_BEGAN: ("Reservation {0} has begun", INFO),
    EventKind.RESERVATION_ENDED: ("Reservation {0} has ended", INFO),
    EventKind.NODE_LOST: ("Node {0} is lost", CRITICAL),
    EventKind.NODE_RETURNED: ("Node {0} is back", INFO),
    TEST: ("Test message of gpucloud", INFO),
}
SENTENCES: Final = {**dict(EventKind.choices), TEST: "The webhook works: its events appear here."}


@dataclass(frozen=True, slots=True)
class Event:
    """An event as the outbox stores it."""

    kind: str
    at: datetime
    data: Data

    @classmethod
    def parse(cls, body: Data) -> "Event":
        """Return the event of a stored body."""
        return cls(body["type"], datetime.fromisoformat(body["timestamp"]), body["data"])


@dataclass(frozen=True, slots=True)
class Words:
    """An event for people; `facts` are labels and values, and `url` leads to its page (empty: unknown)."""

    title: str
    sentence: str
    severity: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""


def words_of(event: Event) -> Words:
    """Return the event in words. Every value is one line of printable text without marks of direction."""
    title, severity = TITLES.get(event.kind, (f"Event {event.kind}", INFO))
    if event.kind == EventKind.BUDGET_THRESHOLD and event.data.get("threshold_percent", 0) >= 100:
        severity = CRITICAL
    why = plain(event.data.get("why") or "")
    sentence = why or str(SENTENCES.get(event.kind, ""))
    facts = [(label, text) for label, read in FACTS if (text := plain(read(event.data)))]
    return Words(title.format(subject(event)), sentence, severity, facts, link(event))


def subject(event: Event) -> str:
    """Return the name of the event's subject."""
    data = event.data
    if about := _about(data):
        return plain(about.get("name") or about.get("uid"))
    if event.kind == EventKind.QUOTA_REQUEST_DECIDED:
        return plain((data.get("request") or {}).get("state"))
    if event.kind == EventKind.BUDGET_THRESHOLD:
        return f"{plain(data.get('threshold_percent'))} %"
    return plain(data.get("node") or data.get("resource") or "")


def _about(data: Data) -> Data:
    """Return the facts of the job, claim or reservation that the event is about."""
    found: Data = next((data[part] for part in ("job", "claim", "reservation") if data.get(part)), {})
    return found


def plain(value: Any, most: int = MOST) -> str:
    """Return the value as one line: without control, format and direction characters, cut to `most` characters."""
    if value is None:
        return ""
    shown = "".join(
        " " if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"} else char for char in str(value)
    )
    line = " ".join(shown.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def link(event: Event) -> str:
    """Return the address of the subject's page; empty without PUBLIC_URL."""
    if not settings.PUBLIC_URL:
        return ""
    data = event.data
    name, key = next(
        (
            (page, found)
            for page, part, field_name in PAGES
            if (found := data.get(part) if field_name is None else (data.get(part) or {}).get(field_name))
        ),
        ("overview", None),
    )
    try:
        return settings.PUBLIC_URL + reverse(name, args=[key] if key else [])
    except NoReverseMatch:
        return settings.PUBLIC_URL + "/"


# Page of the console, and the fact that names its object: the first that is there.
PAGES: Final[list[tuple[str, str, str | None]]] = [
    ("job", "job", "uid"),
    ("claim", "claim", "uid"),
    ("reservation", "reservation", "uid"),
    ("request", "request", "uid"),
    ("node", "node", None),
    ("webhook", "webhook", None),
    ("tenant", "tenant", None),
]


def _moment(name: str) -> Callable[[Data], Any]:
    def read(data: Data) -> str:
        text = data.get(name)
        return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M:%S %Z}" if text else ""

    return read


def _share(data: Data) -> str:
    """Return the claim's share: number of GPUs, percent of each, memory of each."""
    held = data.get("claim") or data.get("reservation") or {}
    if not held.get("gpu_count"):
        return ""
    return f"{held['gpu_count']} × {held.get('core_request')} %, {held.get('memory_mib')} MiB"


# At most ten: a Slack section shows no more.
FACTS: Final[list[tuple[str, Callable[[Data], Any]]]] = [
    ("Tenant", lambda data: data.get("tenant")),
    ("Pool", lambda data: data.get("pool") or _about(data).get("pool")),
    ("Share", _share),
    ("Node", lambda data: data.get("node")),
    ("At", _moment("at")),
    ("Idle since", _moment("since")),
    ("Released at", _moment("release_at")),
    ("Last seen", _moment("last_seen_at")),
    ("GPU hours", lambda data: data.get("gpu_hours") and f"{data.get('gpu_hours_spent')} of {data['gpu_hours']}"),
    ("Granted", lambda data: data.get("granted_amount")),
]
