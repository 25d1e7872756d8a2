"""Reflector of one kind of a cluster's objects: one list, then watches from the version of the list.

A watch that ends, as each does after some minutes, continues from the last version (bookmarks report versions even
without changes). If the server has expired that version everything is listed again. Failures are retried after a
growing random pause, so that a recovering server does not get all requests at once.
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

# As with informers: a watch lasts five to ten minutes.
LEAST_WATCH_SECONDS, MOST_WATCH_SECONDS = 300, 600
MISSING = 404
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.5, 30.0


@dataclass(frozen=True)
class Kind:
    """A kind of objects, with a selection of them."""

    name: str
    path: str
    type: Any
    query: Mapping[str, str] = field(default_factory=dict)
    # If True, a cluster without the kind has no objects of it.
    optional: bool = False


# Ended pods hold nothing: with this selector a watch reports their end as a deletion.
PODS = Kind("pods", "/api/v1/pods", Pod, {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"})
NODES = Kind("nodes", "/api/v1/nodes", Node)
# Undecoded, for readers of every field.
WHOLE_PODS = Kind("pods", PODS.path, dict[str, Any], PODS.query)
NAMESPACES = Kind("namespaces", "/api/v1/namespaces", Namespace)


@dataclass(frozen=True)
class Observation:
    """Observed objects of a kind: a complete list (`whole`), or one object that exists or is gone."""

    kind: str
    objects: tuple[Any, ...]
    whole: bool = False
    gone: bool = False
    # Version of the list, if `whole`.
    version: int = 0


class Reflector:
    """Reflector of one kind of one cluster. It calls `see` and `fail` in its own thread."""

    def __init__(
        self,
        client: Client,
        kind: Kind,
        *,
        see: Callable[[Observation], None],
        fail: Callable[[str, str], None],
        version: str | None = None,
    ) -> None:
        """Prepare the reflector; it watches from `version`, or lists first if None."""
        self._client, self._kind, self._see, self._fail = client, kind, see, fail
        self._stop = threading.Event()
        self._version = version
        self._decoder = msgspec.json.Decoder(kind.type)
        # Number of lists, for tests.
        self.lists = 0

    def start(self) -> None:
        """Run in a daemon thread."""
        threading.Thread(target=self.run, name=f"watch-{self._kind.name}", daemon=True).start()

    def stop(self) -> None:
        """Stop with the next event, or when the present watch ends."""
        self._stop.set()

    def run(self) -> None:
        """List and watch until stopped."""
        failures = 0
        while not self._stop.is_set():
            try:
                if self._version is None:
                    self._list()
                # Closed at once: a kept error, as in a log, must not keep the connection.
                with closing(self._watch()) as versions:
                    for version in versions:
                        self._version, failures = version, 0
                        if self._stop.is_set():
                            return
            except Gone:
                logger.info("%s: watched version expired, listing again", self._kind.name)
                self._version = None
            except (Unreachable, Refused) as error:
                failures += 1
                if self._kind.optional and isinstance(error, Refused) and error.status == MISSING:
                    self._version = None
                    self._see(Observation(self._kind.name, (), whole=True))
                self._fail(self._kind.name, str(error))
                self._stop.wait(pause_seconds(failures))
            except Exception as error:
                # An ended thread would leave stale objects for ever. A new list contains what was missed.
                logger.exception("%s: an observation could not be processed", self._kind.name)
                failures += 1
                self._version = None
                self._fail(self._kind.name, str(error))
                self._stop.wait(pause_seconds(failures))

    def _list(self) -> None:
        items, version = self._client.list(self._kind.path, **self._kind.query)
        self.lists += 1
        objects = tuple(self._decoder.decode(item) for item in items)
        self._see(Observation(self._kind.name, objects, whole=True, version=int(version) if version.isdecimal() else 0))
        # Set only after `see` has the list: if `see` raises, everything is listed again.
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
    """Return the pause after so many failures in a row."""
    longest = min(LAST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * float(1 << min(failures, 16)))
    return longest * random.uniform(0.5, 1)  # noqa: S311
