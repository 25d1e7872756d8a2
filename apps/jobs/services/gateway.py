"""The implementation of `apps.scheduling.providers.Jobs`."""

from apps.jobs.services.orders import orders
from apps.jobs.services.reports import observe as observed
from apps.jobs.services.reports import take_output as output

__all__ = ["observed", "orders", "output"]
