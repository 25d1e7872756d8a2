"""Leadership of one of several extenders by a Lease of Kubernetes, as its own components have it.

The leader writes its name and the time into the Lease again and again. Whoever sees the same Lease for longer than it
says takes it over, by a write that fails if another was quicker. Only the time of this process is compared, so clocks
may differ. A leader that could not renew stops leading before the others may begin.
"""

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from apps.clusters.kube.client import Client, Refused, Unreachable

logger = logging.getLogger(__name__)

# A dead leader is replaced within LEASE_SECONDS + RETRY_SECONDS; kube-controller-manager takes 15 s.
LEASE_SECONDS = 3
# Time for which a renewal counts: shorter than the lease, by more than an answer that is not waited for.
RENEWED_SECONDS = 2.0
RETRY_SECONDS = 0.5
ANSWER_SECONDS = 1.0
GROUP = "/apis/coordination.k8s.io/v1"
Spec = dict[str, Any]


class Lease:
    """One contender for a Lease. `leads` is callable from any thread."""

    def __init__(self, client: Callable[[], Client], *, namespace: str, name: str, identity: str) -> None:
        """Contend as `identity` in the cluster of `client`, which is called again after it failed."""
        self._client_of, self._identity = client, identity
        self._name, self._path = name, f"{GROUP}/namespaces/{namespace}/leases"
        self._client: Client | None = None
        self._leads_until = 0.0
        # The Lease as last seen, and when it was first seen so.
        self._seen: Any = None
        self._seen_at = 0.0
        self._stopped = threading.Event()

    def leads(self) -> bool:
        """Return True while this process leads."""
        return time.monotonic() < self._leads_until

    def run(self) -> None:
        """Contend until stopped, then give the Lease back."""
        while not self._stopped.is_set():
            self.contend()
            self._stopped.wait(RETRY_SECONDS)
        self.give_back()

    def stop(self) -> None:
        """Stop contending."""
        self._stopped.set()

    def contend(self) -> None:
        """Renew the Lease, or take it if nobody has it."""
        begun, led = time.monotonic(), self.leads()
        try:
            if self._take():
                self._leads_until = begun + RENEWED_SECONDS
        except (Refused, Unreachable) as error:
            logger.warning("lease %s not renewed: %s", self._name, error.detail)
        except Exception:
            # The library raises any exception about credentials.
            logger.exception("lease %s not renewed", self._name)
            self._client = None
        if led != self.leads():
            logger.info("leading" if self.leads() else "no longer leading")

    def give_back(self) -> None:
        """Stop contending, and let another one lead at once if this one leads."""
        self._stopped.set()
        if not self.leads():
            return
        self._leads_until = 0.0
        try:
            found = self._api.find(f"{self._path}/{self._name}")
            if found is not None and found["spec"].get("holderIdentity") == self._identity:
                self._write(found, {**found["spec"], "holderIdentity": "", "leaseDurationSeconds": 1})
        except (Refused, Unreachable) as error:
            logger.info("lease %s not given back: %s", self._name, error.detail)

    @property
    def _api(self) -> Client:
        if self._client is None:
            self._client = self._client_of()
            self._client.patience_seconds = ANSWER_SECONDS
        return self._client

    def _take(self) -> bool:
        found = self._api.find(f"{self._path}/{self._name}")
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine: Spec = {"holderIdentity": self._identity, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
        if found is None:
            spec = {**mine, "acquireTime": now, "leaseTransitions": 0}
            return self._try(lambda: self._api.post(self._path, {"metadata": {"name": self._name}, "spec": spec}))
        spec = found.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if (holder, spec.get("renewTime")) != self._seen:
            self._seen, self._seen_at = (holder, spec.get("renewTime")), time.monotonic()
        until = self._seen_at + float(spec.get("leaseDurationSeconds") or LEASE_SECONDS)
        if holder not in ("", self._identity) and time.monotonic() < until:
            return False
        if holder != self._identity:
            mine |= {"acquireTime": now, "leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1}
        return self._try(lambda: self._write(found, {**spec, **mine}))

    def _write(self, found: dict[str, Any], spec: Spec) -> bytes:
        # The version that was read makes a write fail after another's.
        return self._api.put(f"{self._path}/{self._name}", {**found, "spec": spec})

    def _try(self, write: Callable[[], bytes]) -> bool:
        try:
            write()
        except Refused as error:
            if error.status != 409:
                raise
            return False
        return True
