"""The Django project.

Celery's app is imported here: without it, tasks would silently be sent to AMQP on localhost.
"""

from gpucloud.celery import app as celery_app

__all__ = ["celery_app"]
