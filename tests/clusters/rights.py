"""The rights of the chart's accounts, and those that requests need."""

import functools
import re

from apps.clusters.services import connections
from tests.helm import OUTSIDE, named, rendered

# Group, resource, verb, and the name to which the right is restricted.
Right = tuple[str, str, str, str]
EVERY_PART = ("webhooks.enabled=true", "dra.enabled=true")
# What the watch and the extender may do where an agent is a DRA driver, as the connection's test asks.
NEEDED = (*connections.NEEDS, *connections.DEVICE_NEEDS)
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@functools.cache
def rights_of(role: str) -> frozenset[Right]:
    """Return the rights that the manifests give."""
    rules = named(rendered(*OUTSIDE, *EVERY_PART), "ClusterRole", role)["rules"]
    return frozenset(
        (group, resource, verb, name)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    )


def right_of(method: str, path: str) -> Right:
    """Return the right that Kubernetes requires for this request."""
    path = path.partition("?")[0]
    found = re.fullmatch(r"/(?:api|apis/(?P<group>[^/]+))/v\d\w*/(?:namespaces/[^/]+/(?=.))?(?P<rest>.+)", path)
    assert found is not None, path
    resource, _, rest = found["rest"].partition("/")
    name, _, part = rest.partition("/")
    verb = ("get" if name else "list") if method == "GET" else VERBS[method]
    whole = f"{resource}/{part}" if part else resource
    return found["group"] or "", whole, verb, name if resource == "configmaps" else ""


def require(method: str, path: str) -> None:
    """Fail unless the connection's test asks for the right that this request needs."""
    needed = {(need.group, need.resource, verb, need.name) for need in NEEDED for verb in need.verbs}
    assert right_of(method, path) in needed, f"apps/clusters/services/connections.py: {method} {path}"
