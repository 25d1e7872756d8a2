"""Keeping one kind of a cluster's objects in sight: listed once, then watched from the version that the list had.

A watch that ends, as each does after some minutes, goes on from the last version heard of (bookmarks tell versions also
where nothing changes). Where the server has forgotten that version everything is listed anew. What fails is tried again
after a pause that grows and is never the same for two, so that a server that comes back is not met by all at once.
"""

import logging
import random
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import msgspec

from apps.clusters.kube.client import Client, Gone, Refused, Unreachable
from apps.clusters.kube.objects import Namespace, Node, Pod

logger = logging.getLogger(__name__)

# As informers have it: from five to ten minutes a watch.
LEAST_WATCH_SECONDS, MOST_WATCH_SECONDS = 300, 600
MISSING = 404
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.5, 30.0


@dataclass(frozen=True)
class Kind:
    """Objects of one kind, and which of them."""

    name: str
    path: str
    type: Any
    query: Mapping[str, str] = field(default_factory=dict)
    # Where the cluster does not know the kind there are none of it.
    optional: bool = False


# Pods that are over hold nothing: to a watch they are gone when they end.
PODS = Kind("pods", "/api/v1/pods", Pod, {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"})
NODES = Kind("nodes", "/api/v1/nodes", Node)
# As they came, for readers of every field.
WHOLE_PODS = Kind("pods", PODS.path, dict[str, Any], PODS.query)
NAMESPACES = Kind("namespaces", "/api/v1/namespaces", Namespace)


@dataclass(frozen=True)
class Observation:
    """What was heard of a kind: all there is (`whole`), or one object that is there now or is gone."""

    kind: str
    objects: tuple[Any, ...]
    whole: bool = False
    gone: bool = False
    # Of `whole`: the version that the list had.
    version: int = 0


class Reflector:
    """One kind of one cluster. `see` and `fail` are called in the reflector's thread."""

    def __init__(
        self,
        client: Client,
        kind: Kind,
        *,
        see: Callable[[Observation], None],
        fail: Callable[[str, str], None],
        version: str | None = None,
    ) -> None:
        """`version`: to go on from; None: everything is listed first."""
        self._client, self._kind, self._see, self._fail = client, kind, see, fail
        self._stop = threading.Event()
        self._version = version
        self._decoder = msgspec.json.Decoder(kind.type)
        # For tests: how often everything was listed.
        self.lists = 0

    def start(self) -> None:
        """In a thread that ends with the process."""
        threading.Thread(target=self.run, name=f"watch-{self._kind.name}", daemon=True).start()

    def stop(self) -> None:
        """End with the next event, or when the present watch is over."""
        self._stop.set()

    def run(self) -> None:
        """Until it is stopped."""
        failures = 0
        while not self._stop.is_set():
            try:
                if self._version is None:
                    self._list()
                # Closed at once, whatever happens: who keeps the error, as a log does, must not keep the connection.
                with closing(self._watch()) as versions:
                    for version in versions:
                        self._version, failures = version, 0
                        if self._stop.is_set():
                            return
            except Gone:
                logger.info("%s: the version to watch from is gone, listing anew", self._kind.name)
                self._version = None
            except (Unreachable, Refused) as error:
                failures += 1
                if self._kind.optional and isinstance(error, Refused) and error.status == MISSING:
                    self._version = None
                    self._see(Observation(self._kind.name, (), whole=True))
                self._fail(self._kind.name, str(error))
                self._stop.wait(pause_seconds(failures))
            except Exception as error:
                # A thread that ended would leave what is known as it was, for ever. What was missed is in a new list.
                logger.exception("%s: what was heard is not understood", self._kind.name)
                failures += 1
                self._version = None
                self._fail(self._kind.name, str(error))
                self._stop.wait(pause_seconds(failures))

    def _list(self) -> None:
        items, version = self._client.list(self._kind.path, **self._kind.query)
        self.lists += 1
        objects = tuple(self._decoder.decode(item) for item in items)
        self._see(Observation(self._kind.name, objects, whole=True, version=int(version) if version.isdecimal() else 0))
        # What was listed counts once it was seen: else what follows would be watched, and this never known.
        self._version = version

    def _watch(self) -> Any:
        seconds = random.randint(LEAST_WATCH_SECONDS, MOST_WATCH_SECONDS)  # noqa: S311
        assert self._version is not None
        watch = self._client.watch(self._kind.path, self._version, seconds=seconds, **self._kind.query)
        with closing(watch) as events:
            for event in events:
                found = self._decoder.decode(event.object)
                if event.type != "BOOKMARK":
                    self._see(Observation(self._kind.name, (found,), gone=event.type == "DELETED"))
                yield (
                    str(found["metadata"]["resourceVersion"])
                    if isinstance(found, dict)
                    else found.metadata.resource_version
                )


def pause_seconds(failures: int) -> float:
    """After so many failures in a row."""
    longest = min(LAST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * float(1 << min(failures, 16)))
    return longest * random.uniform(0.5, 1)  # noqa: S311
