"""Calls from a lower app to one above it.

Imports point down only. Where a lower app needs an answer from above, it declares a `Provider` and its protocol
(`apps/quotas/providers.py`, `apps/nodes/providers.py`); the app above sets the implementation once, in its
`AppConfig.ready()`.
"""

from typing import Generic, TypeVar

T = TypeVar("T")


class Provider(Generic[T]):
    """A slot for one implementation of a protocol."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._implementation: T | None = None

    def set(self, implementation: T) -> None:
        """Set the implementation; a later one replaces it."""
        self._implementation = implementation

    def find(self) -> T | None:
        """Return the implementation; None if no app provides one."""
        return self._implementation

    def get(self) -> T:
        """Return the implementation. Raises LookupError before it is set."""
        if self._implementation is None:
            raise LookupError(f"No app provides {self._name} yet: its AppConfig.ready() sets it.")
        return self._implementation
