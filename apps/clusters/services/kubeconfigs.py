"""Validation of pasted kubeconfigs: refuses those that would read this machine's files or run its programs."""

import base64
from typing import Any
from urllib.parse import urlsplit

import yaml

from gpucloud.errors import Invalid

# Fields that name files and programs of the user's machine; on the server they would be read or run.
NAMES_FILES = {
    "cluster": ("certificate-authority",),
    "user": ("client-certificate", "client-key", "tokenFile", "exec", "auth-provider"),
}


MOST_OF_SERVER = 2000


class KubeconfigRefused(Invalid, code="kubeconfig-refused", title="This kubeconfig cannot be used"):
    """The kubeconfig cannot be used here."""


def parse(text: str) -> dict[str, Any]:
    """Return the kubeconfig with its current context only. Raises KubeconfigRefused."""
    try:
        whole = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise KubeconfigRefused("It is not YAML that can be read.") from error
    if not isinstance(whole, dict):
        raise KubeconfigRefused("It is not a kubeconfig: see `kubectl config view --minify --flatten --raw`.")
    context = _named(whole, "contexts", whole.get("current-context"), "context")
    cluster = _named(whole, "clusters", context.get("cluster"), "cluster")
    user = _named(whole, "users", context.get("user"), "user")
    for kind, entry in (("cluster", cluster), ("user", user)):
        for name in NAMES_FILES[kind]:
            if name in entry:
                raise KubeconfigRefused(
                    f"Its {kind} has `{name}`, which is a file or a program of another machine: "
                    "use `kubectl config view --minify --flatten --raw`, or a token of a service account.",
                    field=name,
                )
    _refuse_other_servers(cluster.get("server"))
    for entry in (cluster, user):
        _refuse_unreadable(entry)
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "it", "user": user}],
    }


def _refuse_other_servers(server: object) -> None:
    try:
        parts = urlsplit(server) if isinstance(server, str) and len(server) <= MOST_OF_SERVER else None
        good = parts is not None and parts.scheme == "https" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise KubeconfigRefused(f"Its server must be an https:// URL of at most {MOST_OF_SERVER} characters.")


def _refuse_unreadable(entry: dict[str, Any]) -> None:
    """Refuse values that YAML turned into dates or numbers, and data that is not base64."""
    for name, value in entry.items():
        if not isinstance(value, str | bool):
            raise KubeconfigRefused(f"`{name}` must be a text: put it in quotes.", field=str(name))
        if str(name).endswith("-data"):
            try:
                base64.b64decode(str(value), validate=True)
            except ValueError as error:
                raise KubeconfigRefused(f"`{name}` is not base64.", field=str(name)) from error


def server(config: dict[str, Any]) -> str:
    """Return the URL of its API."""
    return str(config["clusters"][0]["cluster"]["server"])


def _named(whole: dict[str, Any], kinds: str, name: object, kind: str) -> dict[str, Any]:
    entries = whole.get(kinds)
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(kind), dict):
            found: dict[str, Any] = entry[kind]
            return found
    raise KubeconfigRefused(f"It has no {kind} {name!r}, which its current context needs.", field=kinds)
