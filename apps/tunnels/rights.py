"""The right to open a terminal in a job, and the record that it was opened."""

import time
import uuid
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from redis.exceptions import RedisError

from apps.jobs.models import Job, JobState
from apps.nodes.models import Node
from apps.quotas import principals
from apps.quotas.authentication import find_session_user
from apps.quotas.models import Role
from apps.quotas.principals import Principal
from apps.quotas.services import attempts, audit, tokens
from gpucloud import hints
from gpucloud.errors import Busy, Conflict, Denied, Missing

# Of one person or token at a time.
MOST_OF_ONE = 16
# One that was not counted again for so long is gone, with its server.
FORGOTTEN_SECONDS = 60.0


class SessionEnded(Denied, code="session-ended", title="The session has ended"):
    """The page's user has signed out, or is signed out."""


class TokenRefused(Denied, code="token-refused", title="The token is not valid"):
    """The token is wrong, expired, revoked, or not valid from here."""


class NoSuchJob(Missing, code="no-such-job", title="There is no such job"):
    """The job does not exist, or not for the caller."""


class JobDoesNotRun(Conflict, code="job-does-not-run", title="The job does not run"):
    """There is no run in which a terminal could be opened."""


class TooManyTunnels(Busy, code="too-many-tunnels", title="Too many terminals are open"):
    """The caller has as many open as one may have."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A terminal that may be opened now."""

    principal: Principal
    job: Job
    run_uid: str
    node: Node


def find_token_principal(token_text: str, source_ip: str | None) -> Principal:
    """Return the principal of a token. Raises TokenRefused."""
    token = tokens.find(token_text, source_ip=source_ip)
    if token is None:
        attempts.count_wrong_token(address=source_ip)
        raise TokenRefused("The token is wrong, expired, revoked, or not valid from here.")
    return principals.of_token(token, source_ip=source_ip)


def find_session_principal(scope: dict[str, Any], source_ip: str | None) -> Principal:
    """Return the principal of a page's session. Raises SessionEnded."""
    user = find_session_user(scope.get("session"), scope.get("user"))
    if user is None:
        raise SessionEnded("You are not signed in, or your session has ended: load the page again.")
    return principals.of_user(user, source_ip=source_ip)


def authorize(principal: Principal, job_uid: uuid.UUID) -> Opening:
    """Return what the caller may open. Raises ScopeMissing, RoleMissing, NoSuchJob, JobDoesNotRun."""
    principal.require_scope("claims:write")
    job = Job.objects.visible_to(principal).select_related("tenant").filter(uid=job_uid).first()
    if job is None:
        raise NoSuchJob("There is no job of this uid that you may see.")
    principal.require_role(job.tenant, Role.MEMBER)
    node = Node.objects.filter(name=job.run_node).first() if job.state == JobState.RUNNING else None
    if node is None:
        raise JobDoesNotRun(f"A terminal needs a job that runs; this one is {job.state}.")
    return Opening(principal, job, str(job.run_uid), node)


@transaction.atomic
def record_opened(opening: Opening) -> None:
    """Record in the audit log that a terminal was opened."""
    after = {"run": opening.run_uid, "node": opening.node.name}
    audit.record(opening.principal, "job.exec", opening.job, after=after)


@transaction.atomic
def record_closed(opening: Opening, *, seconds: float, why: str) -> None:
    """Record how long it was open, and why it was closed."""
    after = {"run": opening.run_uid, "seconds": round(seconds), "why": why[:200]}
    audit.record(opening.principal, "job.exec-end", opening.job, after=after)


async def count(principal: Principal, tunnel_uid: str) -> None:
    """Count an open tunnel of this caller, for FORGOTTEN_SECONDS. Raises TooManyTunnels; RedisError, OSError."""
    key, now = _key(principal), time.time()
    async with hints.bus().redis.pipeline(transaction=True) as pipe:
        pipe.zremrangebyscore(key, "-inf", now - FORGOTTEN_SECONDS)
        pipe.zadd(key, {tunnel_uid: now})
        pipe.zcard(key)
        pipe.expire(key, int(2 * FORGOTTEN_SECONDS))
        _, is_new, total, _ = await pipe.execute()
    if is_new and total > MOST_OF_ONE:
        await discount(principal, tunnel_uid)
        raise TooManyTunnels(f"You have {MOST_OF_ONE} terminals open: close one of them.")


async def discount(principal: Principal, tunnel_uid: str) -> None:
    """Stop counting a tunnel."""
    try:
        await hints.bus().redis.zrem(_key(principal), tunnel_uid)
    except (RedisError, OSError):
        return  # it is forgotten after a minute


def _key(principal: Principal) -> str:
    name = f"user-{principal.user_id}" if principal.user_id is not None else principal.pk
    return hints.channel_of(f"tunnels-of-{name}")
