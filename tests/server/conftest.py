"""The cast, for this folder's tests."""

from tests.cast import real_cast

__all__ = ["real_cast"]
