"""The cast and the clock, for this folder's tests."""

from tests.cast import cast, real_cast
from tests.scheduling.clock import clock

__all__ = ["cast", "clock", "real_cast"]
