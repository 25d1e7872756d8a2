"""The cast and the platform, for this folder's tests."""

from tests.cast import cast, real_cast
from tests.scheduling.clock import clock
from tests.scheduling.routes import module_platform, platform

__all__ = ["cast", "clock", "module_platform", "platform", "real_cast"]
