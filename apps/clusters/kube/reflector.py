"""Reflector of one kind of a cluster's objects: one list, then watches from the version of the list.

A watch that ends, as each does after some minutes, continues from the last version (bookmarks report versions even
without changes). If the server has expired that version everything is listed again. What fails or ends at once is tried
again as client-go does: after a pause that doubles, with jitter, so that a recovering server does not get all requests
at once, and not before the time that its Retry-After names. A watch that is silent for longer than bookmarks take is
given up; whether the server is there at all is then asked with a request of its own.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import msgspec

from apps.clusters.kube import kept_pods
from apps.clusters.kube.client import Client, Gone, Refused, Silent, Unreachable
from apps.clusters.kube.objects import Namespace, Node, Pod

logger = logging.getLogger(__name__)

# As with informers: a watch lasts five to ten minutes.
LEAST_WATCH_SECONDS, MOST_WATCH_SECONDS = 300, 600
MISSING = 404
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.5, 30.0
# An attempt that lasted so long, longer than a connection takes to fail, was a good one: the next failure is the first.
GOOD_SECONDS = 15.0


@dataclass(frozen=True)
class Kind:
    """A kind of objects, with a selection of them."""

    name: str
    path: str
    type: Any
    query: Mapping[str, str] = field(default_factory=dict)
    # If True, a cluster without the kind has no objects of it.
    optional: bool = False
    # Drops from a decoded object what nobody reads, and returns it.
    trim: Callable[[Any], Any] | None = None


# Ended pods hold nothing: with this selector a watch reports their end as a deletion.
PODS = Kind("pods", "/api/v1/pods", Pod, {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"})
NODES = Kind("nodes", "/api/v1/nodes", Node)
# As dictionaries, for the readers of formats.
KEPT_PODS = Kind("pods", PODS.path, kept_pods.KeptPod, PODS.query, trim=kept_pods.trim)
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
        self._heard_at = time.monotonic()
        # Number of lists, for tests.
        self.lists = 0

    @property
    def kind(self) -> str:
        """Name of the kind."""
        return self._kind.name

    @property
    def age_seconds(self) -> float:
        """Time since the API server last said something of this kind, if only in a bookmark."""
        return time.monotonic() - self._heard_at

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
            begun = time.monotonic()
            failed, least = self._attempt()
            if self._stop.is_set():
                return
            good = time.monotonic() - begun >= GOOD_SECONDS
            if good and not failed:
                failures = 0
                continue
            failures = 1 if good else failures + 1
            self._stop.wait(max(least, pause_seconds(failures)))

    def _attempt(self) -> tuple[bool, float]:
        """List if necessary, and watch to the end. Return True if it failed, and the least pause in seconds."""
        try:
            if self._version is None:
                self._list()
            # Closed at once: a kept error, as in a log, must not keep the connection.
            with closing(self._watch()) as versions:
                for version in versions:
                    self._version = version
                    if self._stop.is_set():
                        break
            return False, 0.0
        except Gone as error:
            logger.info("%s: watched version expired, listing again", self._kind.name)
            self._version = None
            return True, error.pause_seconds
        except Silent as error:
            logger.info("%s: %s", self._kind.name, error.detail)
            return self._is_away(), 0.0
        except (Unreachable, Refused) as error:
            if self._kind.optional and isinstance(error, Refused) and error.status == MISSING:
                self._version = None
                self._see(Observation(self._kind.name, (), whole=True))
            self._fail(self._kind.name, str(error))
            return True, getattr(error, "pause_seconds", 0.0)
        except Exception as error:
            # An ended thread would leave stale objects for ever. A new list contains what was missed.
            logger.exception("%s: an observation could not be processed", self._kind.name)
            self._version = None
            self._fail(self._kind.name, str(error))
            return True, 0.0

    def _is_away(self) -> bool:
        """Return True, and report it, if the API server answers nothing at all. One without bookmarks does."""
        try:
            self._client.version()
        except (Unreachable, Refused) as error:
            self._fail(self._kind.name, f"Nothing was heard for {self.age_seconds:.0f} s. {error}")
            return True
        self._heard_at = time.monotonic()
        return False

    def _list(self) -> None:
        objects: list[Any] = []
        version = ""
        # A page is decoded before the next one is read: undecoded, all pods of a large cluster are hundreds of MB.
        for page in self._client.pages(self._kind.path, **self._kind.query):
            objects += map(self._decode, page.items or ())
            version = page.metadata.resource_version
        self.lists, self._heard_at = self.lists + 1, time.monotonic()
        number = int(version) if version.isdecimal() else 0
        self._see(Observation(self._kind.name, tuple(objects), whole=True, version=number))
        # Set only after `see` has the list: if `see` raises, everything is listed again.
        self._version = version

    def _decode(self, raw: msgspec.Raw) -> Any:
        found = self._decoder.decode(raw)
        return found if self._kind.trim is None else self._kind.trim(found)

    def _watch(self) -> Any:
        seconds = random.randint(LEAST_WATCH_SECONDS, MOST_WATCH_SECONDS)  # noqa: S311
        assert self._version is not None
        watch = self._client.watch(self._kind.path, self._version, seconds=seconds, **self._kind.query)
        with closing(watch) as events:
            for event in events:
                self._heard_at = time.monotonic()
                found = self._decode(event.object)
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
