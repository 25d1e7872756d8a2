"""Celery tasks of this app."""

from celery import shared_task
from django.conf import settings

from apps.jobs.services import reports


@shared_task
def follow_jobs() -> int:
    """End or repeat the runs whose claim is not there any more; return how many."""
    return reports.follow()


@shared_task
def forget_job_output() -> int:
    """Delete the output of jobs that ended long ago, or that is too much; return the number of jobs."""
    return reports.forget_output(days=settings.JOB_OUTPUT_DAYS, mib=settings.JOB_OUTPUT_MIB)
