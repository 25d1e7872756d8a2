"""A bounded number of slots of one server process that tenants share, so that none of them can take all."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from apps.notebooks.pages import Refused


class FairSlots:
    """Slots of which a tenant gets one more only while it has fewer than are free.

    The agent has the same rule for the slots of a node (`agent.jobs.slots`).
    """

    def __init__(self, most: int, noun: str) -> None:
        self._most, self._noun, self._taken = most, noun, Counter[int]()

    def check(self, tenant: int) -> None:
        """Raise Refused if the tenant has its part."""
        if self._taken[tenant] >= self._most - self._taken.total():
            raise Refused(503, f"The tenant's notebooks have too many {self._noun} at once: close some tabs.")

    @contextmanager
    def taken(self, tenant: int) -> Iterator[None]:
        """Take a slot for as long as this lasts; nothing is awaited between `check` and this."""
        self._taken[tenant] += 1
        try:
            yield
        finally:
            self._taken[tenant] -= 1
            if not self._taken[tenant]:
                del self._taken[tenant]
