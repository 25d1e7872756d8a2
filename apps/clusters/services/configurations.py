"""Configuration files for kube-scheduler and API servers that match this installation."""

from pathlib import Path
from typing import Any, Literal

from django.conf import settings

from apps.clusters.admission import certificates, manifests
from apps.clusters.models import Cluster
from apps.clusters.services import scheduler_configuration
from apps.quotas.principals import Principal
from gpucloud.errors import Conflict, Invalid

Json = dict[str, Any]
Form = Literal["configuration", "policy"]
# Wildcard addresses: they are not reachable under these names.
ANYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - read, not bound


class NoAuthority(Conflict, code="no-authority", title="The webhooks have no certificates yet"):
    """There is no certificate authority that API servers could trust."""


class NotReachable(Invalid, code="not-reachable", title="API servers cannot call webhooks there"):
    """API servers cannot call webhooks at this address."""


def url() -> str:
    """Return the extender's URL according to the settings."""
    host = "127.0.0.1" if settings.EXTENDER_HOST in ANYWHERE else settings.EXTENDER_HOST
    scheme = "https" if settings.EXTENDER_CERTIFICATE else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.EXTENDER_PORT}"


def address_for(at: str, cluster: Cluster | None) -> str:
    """Return the extender's URL for the cluster's kube-scheduler; without clusters the short one."""
    return at.rstrip("/") + (f"/clusters/{cluster.name}" if cluster else "")


def scheduler(
    *,
    principal: Principal,
    form: Form = "configuration",
    at: str = "",
    cluster: Cluster | None = None,
    by_name: bool = False,
    everything: bool = False,
    scheduler_name: str = "",
    tls: dict[str, str] | None = None,
) -> Json:
    """Return the configuration of kube-scheduler. Raises Denied.

    `at`: URL of the extender for kube-scheduler; else from the settings. `cluster`: one of several, else the first; its
    name becomes part of the path. `tls`: files on kube-scheduler's machine.
    """
    principal.require_operator()
    address = address_for(at or url(), cluster or Cluster.objects.order_by("pk").first())
    files: dict[str, Any] = dict(tls or {})
    entry = scheduler_configuration.extender(address, by_name=by_name, everything=everything, **files)
    if form == "policy":
        return scheduler_configuration.policy(entry)
    return scheduler_configuration.configuration(entry, scheduler_name=scheduler_name or None)


def convert(*, principal: Principal, document: Json) -> tuple[Json, list[str]]:
    """Return the other form, and the fields that it lacks. Raises NotASchedulerConfiguration, Denied."""
    principal.require_operator()
    return scheduler_configuration.convert(document)


def webhooks(
    *,
    principal: Principal,
    service: str = "",
    at: str = "",
    before_1_28: bool = False,
    hide_gpus: bool = False,
    devices: bool = False,
    cluster: Cluster | None = None,
) -> list[Json]:
    """Return both configurations with the authority beside EXTENDER_CERTIFICATE. Raises NoAuthority, Denied.

    `service`: NAMESPACE/NAME of the webhooks' Service; else `at`, an https:// address, or the listener's own. Raises
    NotReachable.
    """
    principal.require_operator()
    namespace, slash, name = service.partition("/")
    if (service and not (namespace and slash and name)) or (at and not at.startswith("https://")):
        raise NotReachable("Say a Service as NAMESPACE/NAME, or an https:// address: API servers speak TLS only.")
    trusted = _authority()
    reached: Json = {"service": (namespace, name)} if service else {"url": at or url()}
    asked: Json = {"hide_gpus": hide_gpus, "devices": devices, "cluster": cluster.name if cluster else ""}
    asked["key"] = next(iter(settings.ADMISSION_DEVICES_KEYS), "")
    return manifests.configurations(ca_bundle=trusted, conditions=not before_1_28, **asked, **reached)


def _authority() -> bytes:
    """Return the certificate authority that API servers trust, as PEM. Raises NoAuthority."""
    if settings.EXTENDER_CERTIFICATE:
        try:
            return certificates.bundle(Path(settings.EXTENDER_CERTIFICATE).parent)
        except OSError:
            pass
    raise NoAuthority(
        "EXTENDER_CERTIFICATE names no certificate with its authority beside it: make them with "
        "`manage.py webhook_certificates`, which prints this configuration too."
    )
