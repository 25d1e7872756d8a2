"""Celery tasks of this app."""

from celery import shared_task
from django.conf import settings

from apps.jobs.services import files, reports


@shared_task
def follow_jobs() -> int:
    """End or repeat the runs whose claim is not there any more; return how many."""
    return reports.follow()


@shared_task
def forget_job_output() -> int:
    """Delete output and files of jobs that ended long ago, and output that is too much; return the number of jobs."""
    files.forget_files(days=settings.JOB_OUTPUT_DAYS)
    return reports.forget_output(days=settings.JOB_OUTPUT_DAYS, mib=settings.JOB_OUTPUT_MIB)
