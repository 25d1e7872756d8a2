"""A bounded number of slots that the tenants of a node share, so that none of them can take all."""

from collections import Counter


class FairSlots:
    """Slots of which a tenant gets one more only while it has fewer than are free.

    A tenant alone so has half of them, each of two a third, each of n one in n + 1; whoever has none finds some free.
    """

    def __init__(self, most: int) -> None:
        self._most, self._taken = most, Counter[int]()

    def take(self, owner: int) -> bool:
        """Take a slot for this tenant, by its number; return False if it has its part."""
        if self._taken[owner] >= self._most - self._taken.total():
            return False
        self._taken[owner] += 1
        return True

    def give_back(self, owner: int) -> None:
        """Free a slot that the tenant had taken."""
        self._taken[owner] -= 1
        if not self._taken[owner]:
            del self._taken[owner]
