"""Celery tasks of this app."""

import logging

from celery import shared_task

from apps.accounting.services import allocations, budget_stops, guarantees, past_use, rollups
from apps.accounting.services.ledger_check import differences
from apps.nodes.services.telemetry import rolling

logger = logging.getLogger(__name__)


@shared_task
def check_ledger() -> int:
    """Check the ledger, nightly; log the numbers that differ, and return how many do."""
    found = differences()
    for item in found:
        logger.error("%s: %s is %d and should be %d", item.subject, item.number, item.is_now, item.should_be)
    return len(found)


@shared_task
def roll_up_usage() -> int:
    """Store the hours used before telemetry is dropped; return the number of rows written."""
    rolling.roll_up()
    return rollups.roll_up()


@shared_task
def roll_up_allocations() -> int:
    """Count allocated and used GPU-hours; return the number of rows written."""
    return allocations.roll_up()


@shared_task
def settle_past_use() -> int:
    """Bring the past use of pools whose fair share remembers up to now; return the number of pools."""
    return past_use.settle_all()


@shared_task
def watch_guarantees() -> int:
    """Announce which claims miss their guarantee; return the number of claims changed."""
    return guarantees.watch()


@shared_task
def stop_budgets() -> int:
    """Give notice to claims of budgets that are nearly spent, and end them on time; return the number of claims."""
    return budget_stops.drive()
