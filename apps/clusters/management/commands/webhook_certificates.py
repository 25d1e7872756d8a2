"""`manage.py webhook_certificates`: creates and rotates the certificates of the admission webhooks."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.clusters.admission import certificates, manifests


class Command(BaseCommand):
    """Command that creates and renews certificates and prints the configurations."""

    help = (
        "Create or renew the webhooks' certificates in a directory (run it daily; it renews only what is due), "
        "and print the two webhook configurations for this installation: `… | kubectl apply -f -`."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the directory, the names and the address of the webhooks."""
        parser.add_argument(
            "--directory", required=True, type=Path, help="directory of ca.crt, ca.key, tls.crt and tls.key"
        )
        parser.add_argument("--service", metavar="NAMESPACE/NAME", help="Service of the webhooks in the cluster")
        parser.add_argument("--url", help="URL of the webhooks outside of the cluster: https://host:port")
        parser.add_argument("--name", action="append", default=[], help="a further DNS name or address (repeatable)")
        parser.add_argument("--renew", action="store_true", help="renew the certificate even if it is not due")
        parser.add_argument(
            "--before-1-28",
            action="store_true",
            help="for Kubernetes without matchConditions: API servers send every pod",
        )

        parser.add_argument(
            "--hide-gpus",
            action="store_true",
            help="also for pods that ask for no GPU: they get NVIDIA_VISIBLE_DEVICES=void, except in namespaces that "
            "are labelled gpucloud.io/gpus=visible",
        )
        parser.add_argument(
            "--devices",
            nargs="?",
            const="",
            metavar="CLUSTER",
            help="also for ResourceClaims: they are charged at creation, in this cluster (default: the first one)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Write the files and print both configurations. Raises CommandError for an address no API server can use."""
        service, url = options["service"], options["url"]
        if (service is None) == (url is None):
            raise CommandError("Say how the API server reaches the webhooks: --service NAMESPACE/NAME, or --url.")
        names = [*_names(service, url), *options["name"]]
        written = certificates.rotate(options["directory"], names, now=datetime.now(UTC), force=options["renew"])
        said = f"Written: {', '.join(written)}." if written else "Nothing is due."
        self.stderr.write(f"{said} For {', '.join(names)}, in {options['directory']}.")
        configurations = manifests.configurations(
            ca_bundle=certificates.bundle(options["directory"]),
            url=url,
            service=tuple(service.split("/")) if service else None,
            conditions=not options["before_1_28"],
            hide_gpus=options["hide_gpus"],
            devices=options["devices"] is not None,
            cluster=options["devices"] or "",
            key=next(iter(settings.ADMISSION_DEVICES_KEYS), ""),
        )
        self.stdout.write(yaml.safe_dump_all(configurations, sort_keys=False))


def _names(service: str | None, url: str | None) -> list[str]:
    if service is not None:
        namespace, _, name = service.partition("/")
        if not namespace or not name or "/" in name:
            raise CommandError(f"{service} is not NAMESPACE/NAME.")
        return [f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local"]
    host = urlsplit(url or "")
    if host.scheme != "https" or not host.hostname:
        raise CommandError(f"{url} must begin with https://: an API server speaks TLS to webhooks only.")
    return [host.hostname]
