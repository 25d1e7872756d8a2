"""The cast, for this folder's tests."""

from tests.cast import cast, real_cast

__all__ = ["cast", "real_cast"]
