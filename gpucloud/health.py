"""Health endpoints: /healthz for liveness, /readyz for readiness."""

from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, JsonResponse
from redis import Redis, RedisError


def healthz(request: HttpRequest) -> JsonResponse:
    """Answer 200 while this process serves."""
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> JsonResponse:
    """Answer 200 if the database, Redis and the migrations are ready; else 503 with the reasons."""
    wrong = {name: problem for name, check in CHECKS.items() if (problem := check())}
    return JsonResponse({"status": "unready" if wrong else "ready", **wrong}, status=503 if wrong else 200)


def _database() -> str | None:
    try:
        executor = MigrationExecutor(connection)
        if executor.migration_plan(executor.loader.graph.leaf_nodes()):
            return "migrations are missing: run `manage.py migrate`"
    except DatabaseError as error:
        return f"the database does not answer: {type(error).__name__}"
    return None


def _redis() -> str | None:
    client = Redis.from_url(settings.REDIS_URL, socket_timeout=1)
    try:
        client.ping()
    except (RedisError, OSError) as error:
        return f"Redis does not answer: {type(error).__name__}"
    finally:
        client.close()
    return None


CHECKS = {"database": _database, "redis": _redis}
