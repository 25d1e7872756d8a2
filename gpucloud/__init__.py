"""The Django project.

Celery's app is imported here: without it, tasks would silently be sent to AMQP on localhost.
"""

from gpucloud.fastpath import gc_tuning

# Before the imports that follow: nearly all that they create stays.
gc_tuning.collect_less_often()
gc_tuning.end_without_collecting()

from gpucloud.celery import app as celery_app  # noqa: E402

__all__ = ["celery_app"]
