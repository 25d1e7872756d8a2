"""A cluster as its extender sees it, and what the extender asks of the ledger."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from apps.clusters.core.gpu_admission import Chosen
from apps.clusters.kube.client import Client
from apps.clusters.kube.mirror import Mirror
from apps.clusters.kube.pods import Key, PodState

# Model and UUID, by node and index.
Gpus = Mapping[str, Mapping[int, tuple[str, str]]]
# A chooser by the ledger: returns (node, GPUs), or the reason why there is none.
Choose = Callable[[PodState, list[str]], "tuple[str, Chosen] | str"]


class NoLedger(Exception):
    """The database does not answer, so nothing can be promised."""


class Promises(Protocol):
    """Promises of GPUs to pods in the ledger (`extender.promises`). Its methods raise NoLedger only."""

    def keep(self, pod: PodState, node: str, chosen: Chosen) -> bool:
        """Promise the pod these GPUs and no others; return False if others took them, after reading what is left."""

    def withdraw(self, pod: PodState) -> None:
        """Withdraw the promise of a pod that could not be annotated."""

    def gpus(self) -> Gpus:
        """Return model and UUID of the known GPUs, by node and index."""


@dataclass
class Extended:
    """A cluster as its extender sees it."""

    name: str
    client: Client
    mirror: Mirror
    strict: bool = False
    # None: gpu-admission's rules.
    choose: Choose | None = None
    # None: the cluster is not in the ledger.
    promises: Promises | None = None
    # Seconds since the API server last said something, by kind of objects.
    ages: Callable[[], Mapping[str, float]] = dict

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        # Pods whose annotations are written while others are decided about.
        self.written: set[Key] = set()
