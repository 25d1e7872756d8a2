"""The cast."""

from tests.cast import cast, real_cast

__all__ = ["cast", "real_cast"]
