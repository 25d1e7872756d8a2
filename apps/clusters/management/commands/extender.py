"""`manage.py extender`: serves kube-scheduler. Needs the clusters' API servers, but neither Redis nor a worker."""

import logging
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterable
from functools import partial
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import DatabaseError, connection

from apps.clusters.core.gpu_admission import Chosen
from apps.clusters.dra import charging
from apps.clusters.extender import listener
from apps.clusters.extender.choosing import ByLedger
from apps.clusters.extender.cluster import Choose, Extended
from apps.clusters.extender.handler import ExtenderHandler
from apps.clusters.extender.lease import Lease
from apps.clusters.extender.promises import Promises
from apps.clusters.kube.client import Client
from apps.clusters.kube.mirror import Mirror
from apps.clusters.kube.pods import PodState
from apps.clusters.kube.reflector import NODES, PODS, Reflector
from apps.clusters.models import Cluster, Placement
from apps.clusters.services.clusters import kubeconfig_of
from gpucloud.fastpath import gc_tuning

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
# Interval of gc freezes: objects that have arrived since are frozen within a few milliseconds.
SETTLE_SECONDS = 60.0
VERSION = "gpucloud, as gpu-admission v0.1.0"


class Extenders(dict[str, Extended]):
    """The served clusters by name, in step with the database."""

    def __init__(self) -> None:
        super().__init__()
        # The name of the cluster that was connected first, served or not: short paths are its.
        self.first: str | None = None
        self._versions: dict[str, int] = {}
        self._watches: dict[str, list[Reflector]] = {}
        self._promises: dict[str, Promises] = {}
        # Versions of clusters with unusable credentials.
        self._unusable: dict[str, int] = {}

    def refresh(self) -> None:
        """Start new clusters and restart changed ones. Raises DatabaseError, and changes nothing then."""
        every = list(Cluster.objects.order_by("pk"))
        self.first = every[0].name if every else None
        rows = {row.name: row for row in every if row.enabled}
        for name in [name for name in self if name not in rows or rows[name].version != self._versions[name]]:
            for watch in self._watches.pop(name):
                watch.stop()
            del self[name], self._promises[name]
        for name, row in rows.items():
            if name not in self and self._unusable.get(name) != row.version:
                try:
                    self[name] = self._begin(row)
                    self._versions[name] = row.version
                except DatabaseError:
                    raise
                except Exception:
                    # The library raises any exception about credentials; the other clusters are served.
                    logger.exception("cluster %s could not be served", name)
                    self._unusable[name] = row.version
        for promises in self._promises.values():
            promises.refresh()

    def _begin(self, row: Cluster) -> Extended:
        mirror, api = Mirror(), Client(kubeconfig_of(row))
        promises = Promises(row, mirror)
        promises.refresh()
        watches = [Reflector(api, kind, see=mirror.see, fail=_log_failure(row.name)) for kind in (PODS, NODES)]
        self._watches[row.name] = watches
        for watch in watches:
            watch.start()
        logger.info("serving cluster %s with placement %s", row.name, row.placement)
        choose = _by_ledger(ByLedger(row, api, mirror)) if row.placement == Placement.GPUCLOUD else None
        self._promises[row.name] = promises
        return Extended(
            row.name, api, mirror, strict=row.strict, choose=choose, promises=promises, ages=partial(_ages, watches)
        )


def _by_ledger(choose: ByLedger) -> Choose:
    """Wrap the chooser for any thread: its database connection may have died since its last use."""

    def chosen(pod: PodState, names: list[str]) -> tuple[str, Chosen] | str:
        try:
            return choose(pod, names)
        except DatabaseError as error:
            logger.warning("database unavailable: %s", error)
            connection.close()
            return "gpucloud's database does not answer: try again."

    return chosen


def _ages(watches: Iterable[Reflector]) -> dict[str, float]:
    return {watch.kind: watch.age_seconds for watch in watches}


def _log_failure(cluster: str) -> Any:
    return lambda kind, error: logger.warning("cluster %s: %s: %s", cluster, kind, error)


class Command(BaseCommand):
    """The extender."""

    help = (
        "Serve kube-scheduler: filter, prioritize, bind and preempt, as gpu-admission does. Example: manage.py extender"
    )

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve until SIGTERM or SIGINT."""
        clusters = Extenders()
        clusters.refresh()
        threading.Thread(target=_keep, args=(clusters,), daemon=True).start()
        networks = None if settings.EXTENDER_CLIENT_CA else settings.EXTENDER_CIDRS
        lease = _contend()
        leads = (lambda: True) if lease is None else lease.leads
        handler = ExtenderHandler(
            clusters,
            networks=networks,
            version=VERSION,
            first=lambda: clusters.first,
            leads=leads,
            webhooks=charging.application,
        )
        listener.serve(
            handler,
            certificate=settings.EXTENDER_CERTIFICATE,
            key=settings.EXTENDER_KEY,
            host=settings.EXTENDER_HOST,
            port=settings.EXTENDER_PORT,
            authority=settings.EXTENDER_CLIENT_CA,
        )


def _give_back_at_the_end(lease: Lease) -> None:
    """Give the Lease back when the listener has ended: it raises its signal once more, for this handler."""

    def end(*_: object) -> None:
        lease.give_back()
        sys.exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def _contend() -> Lease | None:
    """Contend for EXTENDER_LEASE in a thread; None if there is none: this extender is the only one."""
    namespace, slash, name = settings.EXTENDER_LEASE.partition("/")
    if not slash:
        return None

    def client() -> Client:
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            return Client(None)
        row = Cluster.objects.order_by("pk").first()
        if row is None:
            raise LookupError("There is no cluster yet whose Lease could be taken.")
        return Client(kubeconfig_of(row))

    lease = Lease(client, namespace=namespace, name=name, identity=f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}")
    threading.Thread(target=lease.run, name="lease", daemon=True).start()
    _give_back_at_the_end(lease)
    return lease


def _keep(clusters: Extenders) -> None:
    ready, settled_at = 0, 0.0
    while True:
        time.sleep(LOOK_SECONDS)
        now_ready = sum(one.mirror.ready for one in clusters.values())
        if now_ready != ready or time.monotonic() - settled_at >= SETTLE_SECONDS:
            gc_tuning.freeze_startup_objects()
            ready, settled_at = now_ready, time.monotonic()
        try:
            clusters.refresh()
        except DatabaseError as error:
            logger.warning("database unavailable, continuing with the last known state: %s", error)
            connection.close()
        except Exception:
            logger.exception("clusters could not be refreshed")
