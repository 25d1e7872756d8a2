"""Hints to those who follow a job: there is more output, or it has ended. Repair: they read again by themselves."""

import uuid

from apps.scheduling.events import hint_on_commit


def job_group(uid: uuid.UUID | str) -> str:
    """Return the group of requests that wait for a job's output."""
    return f"job.{uid}"


def job_changed_on_commit(uid: uuid.UUID) -> None:
    """Notify followers of the job after the commit."""
    hint_on_commit(job_group(uid), {"type": "job.changed"})
