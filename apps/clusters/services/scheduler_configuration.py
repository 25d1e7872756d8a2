"""Configuration of kube-scheduler's extenders in both forms.

Before Kubernetes 1.23 extenders stood in a Policy file; since then in a KubeSchedulerConfiguration. The entries are the
same except for `enableHttps` and the timeout (nanoseconds there, `10s` here).
"""

import re
from collections.abc import Mapping
from typing import Any

from apps.clusters.core.gpu_admission import CORE, MEMORY
from gpucloud.errors import Invalid

Json = dict[str, Any]
V1 = "kubescheduler.config.k8s.io/v1"
NANOSECONDS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
SHARED = (
    "urlPrefix", "filterVerb", "prioritizeVerb", "preemptVerb", "bindVerb", "weight", "nodeCacheCapable", "ignorable",
    "managedResources", "tlsConfig",
)  # fmt: skip


class NotASchedulerConfiguration(
    Invalid, code="not-a-scheduler-configuration", title="This is no configuration of kube-scheduler"
):
    """The document has neither form, or an invalid value."""


def extender(
    url: str, *, by_name: bool = False, everything: bool = False, timeout_seconds: int = 10, **tls: str
) -> Json:
    """Return one entry of a KubeSchedulerConfiguration.

    `by_name`: kube-scheduler sends only names of nodes. `everything`: prioritize, bind and preempt too; else the filter
    alone, as with gpu-admission. kube-scheduler does not ask about pods without GPUs.
    """
    entry: Json = {
        "urlPrefix": f"{url.rstrip('/')}/scheduler",
        "filterVerb": "predicates",
        "enableHTTPS": url.startswith("https://"),
        "httpTimeout": f"{timeout_seconds}s",
        "nodeCacheCapable": by_name,
        # A GPU pod without chosen GPUs must not start.
        "ignorable": False,
        "managedResources": [{"name": name, "ignoredByScheduler": False} for name in (CORE, MEMORY)],
    }
    if everything:
        entry |= {"prioritizeVerb": "prioritize", "weight": 1, "bindVerb": "bind", "preemptVerb": "preempt"}
    return entry | ({"tlsConfig": tls} if tls else {})


def configuration(*extenders: Json, scheduler_name: str | None = None) -> Json:
    """Return the configuration for Kubernetes 1.25 and later."""
    made: Json = {"apiVersion": V1, "kind": "KubeSchedulerConfiguration"}
    if scheduler_name is not None:
        made["profiles"] = [{"schedulerName": scheduler_name}]
    return {**made, "extenders": list(extenders)}


def policy(*extenders: Json) -> Json:
    """Return the configuration for Kubernetes before 1.23."""
    return {"kind": "Policy", "apiVersion": "v1", "extenders": [_to_policy(entry) for entry in extenders]}


def convert(document: Mapping[str, Any]) -> tuple[Json, list[str]]:
    """Return the other form of the document, and its fields without a counterpart.

    Raises NotASchedulerConfiguration.
    """
    kind, entries = document.get("kind"), document.get("extenders") or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise NotASchedulerConfiguration("Its `extenders` are not a list of entries.")
    if kind == "Policy":
        made = configuration(*(_to_configuration(entry) for entry in entries))
        keep = {"kind", "apiVersion", "extenders"}
    elif kind == "KubeSchedulerConfiguration":
        made = policy(*entries)
        keep = {"kind", "apiVersion", "extenders"}
    else:
        raise NotASchedulerConfiguration("Its `kind` is neither Policy nor KubeSchedulerConfiguration.")
    return made, sorted(name for name in document if name not in keep and document[name] not in (None, [], {}))


def _to_policy(entry: Mapping[str, Any]) -> Json:
    made = {name: entry[name] for name in SHARED if name in entry}
    if "enableHTTPS" in entry:
        made["enableHttps"] = entry["enableHTTPS"]
    if "httpTimeout" in entry:
        made["httpTimeout"] = _nanoseconds(entry["httpTimeout"])
    return made


def _to_configuration(entry: Mapping[str, Any]) -> Json:
    made = {name: entry[name] for name in SHARED if name in entry}
    if (https := entry.get("enableHttps", entry.get("enableHTTPS"))) is not None:
        made["enableHTTPS"] = https
    if "httpTimeout" in entry:
        made["httpTimeout"] = _duration(_nanoseconds(entry["httpTimeout"]))
    return made


def _nanoseconds(text: object) -> int:
    """Parse nanoseconds, or a duration as Go writes it: `1m30s`, `500ms`."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    # Longer numbers are not valid durations in Go either.
    parts = re.findall(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(ns|us|µs|ms|s|m|h)", str(text))
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise NotASchedulerConfiguration(f"Its timeout {text!r} is no duration, like `10s`.")
    return round(sum(float(number) * NANOSECONDS[unit] for number, unit in parts))


def _duration(nanoseconds: int) -> str:
    for unit in ("s", "ms", "us"):
        if nanoseconds % NANOSECONDS[unit] == 0:
            return f"{nanoseconds // NANOSECONDS[unit]}{unit}"
    return f"{nanoseconds}ns"
