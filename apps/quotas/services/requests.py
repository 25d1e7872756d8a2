"""Quota requests and answers: each change under the request's row lock, so that two operators decide once.

Order of locks: the request, then as everywhere: pools, tenants, shares, quotas. A quota is raised and lowered by
amounts, read under its tenant's lock, so concurrent changes of it are kept.
"""

from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from apps.quotas.models import EventKind, Pool, QuotaRequest, ResourceQuota, Role, Tenant
from apps.quotas.models.request import UNANSWERED, UNDECIDED, RequestState
from apps.quotas.models.resource import ZERO_WITHOUT_ROW
from apps.quotas.principals import SYSTEM, Principal
from apps.quotas.services import audit, charging, overcommit, quotas
from apps.quotas.services.webhooks.outbox import tell
from gpucloud.api import etags
from gpucloud.errors import Conflict, Invalid

# Actions that answer a request, or end the answer.
DECISIONS = frozenset({"approve", "counter", "accept", "deny", "lapse"})


class WrongState(Conflict):
    """The request's state does not allow this."""

    code = "wrong-state"
    title = "The request's state does not allow this"


class NotLimited(Conflict):
    """There is no limit that could be raised."""

    code = "not-limited"
    title = "This is not limited"


class DatePassed(Invalid):
    """The requested or offered end is in the past."""

    code = "date-passed"
    title = "This moment has passed"


@transaction.atomic
def ask(
    *,
    principal: Principal,
    tenant: Tenant,
    pool: Pool | None,
    resource: str,
    amount: int,
    reason: str,
    until: datetime | None = None,
) -> QuotaRequest:
    """Request `amount` more, for good or until a time; of a member, the tenant's admins pass it on to the operators.

    Raises RoleMissing, NotLimited, DatePassed.
    """
    principal.require_role(tenant, "member")
    _refuse_past(until)
    request = QuotaRequest(tenant=tenant, pool=pool, resource=resource, amount=amount, until=until, reason=reason)
    _require_limit(request)
    request.created_by = principal.name
    if not _administers(principal, tenant):
        request.state = RequestState.REQUESTED
    request.save()
    _note(request, principal=principal, action="create", amount=amount, until=until, reason=reason)
    return request


@transaction.atomic
def forward(*, principal: Principal, request: QuotaRequest, versions: etags.Versions = None) -> QuotaRequest:
    """Pass a member's request on to the operators. Raises RoleMissing, WrongState."""
    principal.require_role(request.tenant, "admin")
    request = _lock_row(request, versions, RequestState.REQUESTED)
    request.change(state=RequestState.OPEN)
    _note(request, principal=principal, action="forward")
    return request


@transaction.atomic
def approve(
    *, principal: Principal, request: QuotaRequest, words: str = "", versions: etags.Versions = None
) -> QuotaRequest:
    """Grant the request. Raises WrongState (another operator was faster), NotLimited, DatePassed."""
    principal.require_operator()
    request = _lock_row(request, versions, RequestState.OPEN)
    return _grant(request, request.amount, request.until, principal=principal, action="approve", words=words)


@transaction.atomic
def counter(
    *,
    principal: Principal,
    request: QuotaRequest,
    amount: int,
    until: datetime | None = None,
    words: str = "",
    versions: etags.Versions = None,
) -> QuotaRequest:
    """Offer another amount or end, which counts once the tenant accepts it. Raises WrongState, DatePassed."""
    principal.require_operator()
    request = _lock_row(request, versions, *UNDECIDED)
    _refuse_past(until)
    answer = {"offered_amount": amount, "offered_until": until, "words": words, "answered_by": principal.name}
    request.change(state=RequestState.COUNTERED, **answer)
    _note(request, principal=principal, action="counter", amount=amount, until=until, words=words)
    return request


@transaction.atomic
def accept(*, principal: Principal, request: QuotaRequest, versions: etags.Versions = None) -> QuotaRequest:
    """Accept the operator's offer. Raises RoleMissing, WrongState, NotLimited, DatePassed."""
    principal.require_role(request.tenant, "admin")
    request = _lock_row(request, versions, RequestState.COUNTERED)
    assert request.offered_amount is not None
    return _grant(request, request.offered_amount, request.offered_until, principal=principal, action="accept")


@transaction.atomic
def deny(*, principal: Principal, request: QuotaRequest, words: str, versions: etags.Versions = None) -> QuotaRequest:
    """Deny the request with a reason: operators, and the tenant's admins what they would not pass on.

    Raises RoleMissing, WrongState.
    """
    principal.require_role(request.tenant, "admin")
    if request.state != RequestState.REQUESTED:
        principal.require_operator()
    allowed = UNANSWERED if principal.is_operator else (RequestState.REQUESTED,)
    request = _lock_row(request, versions, *allowed)
    request.change(state=RequestState.DENIED, words=words, answered_by=principal.name, decided_at=timezone.now())
    _note(request, principal=principal, action="deny", words=words)
    return request


@transaction.atomic
def withdraw(*, principal: Principal, request: QuotaRequest, versions: etags.Versions = None) -> QuotaRequest:
    """Withdraw the request: the tenant's admins, and whoever made it. Raises RoleMissing, WrongState."""
    own = person_of(request.created_by) == person_of(principal.name)
    principal.require_role(request.tenant, "member" if own else "admin")
    request = _lock_row(request, versions, *UNANSWERED)
    request.change(state=RequestState.WITHDRAWN, decided_at=timezone.now())
    _note(request, principal=principal, action="withdraw")
    return request


def lapse_due() -> int:
    """End expired grants; return the number of lapsed requests."""
    due = QuotaRequest.objects.filter(state=RequestState.APPROVED, granted_until__lte=timezone.now())
    return sum(_lapse(pk) for pk in due.order_by("granted_until", "pk").values_list("pk", flat=True))


@transaction.atomic
def _lapse(pk: int) -> bool:
    """Lower the quota by the granted amount, to zero at least; holdings above it stay, as `excess`."""
    request = QuotaRequest.objects.select_for_update(of=("self",)).select_related("tenant", "pool").get(pk=pk)
    if request.state != RequestState.APPROVED:
        return False  # another worker was faster
    assert request.granted_amount is not None
    assert request.decided_at is not None
    overcommit.lock(request.pool)
    charging.lock_tenants(request.tenant, exclusive=True)
    quota = _quota_of(request)
    if quota is not None and quota.created_at > request.decided_at:
        quota = None  # created since, in place of the one that was raised
    hard = None if quota is None else quota.hard
    if quota is not None and hard is not None:
        # Without a limit, or without the quota, there is nothing to lower.
        hard = max(0, hard - request.granted_amount)
        quotas.change_quota(principal=SYSTEM, quota=quota, hard=hard)
    request.change(state=RequestState.LAPSED)
    _note(request, principal=SYSTEM, action="lapse", amount=request.granted_amount, quota=quota and quota.pk, hard=hard)
    return True


def _grant(
    request: QuotaRequest,
    amount: int,
    until: datetime | None,
    *,
    principal: Principal,
    action: str,
    **answer: str,
) -> QuotaRequest:
    """Raise the quota by `amount`, or create it, in the caller's transaction."""
    _refuse_past(until)
    overcommit.lock(request.pool)
    charging.lock_tenants(request.tenant, exclusive=True)
    quota = _require_limit(request)
    # Accepting an offer executes an operator's decision in the tenant admin's name.
    allowed = replace(principal, is_operator=True)
    if quota is None:
        quota = quotas.create_quota(
            principal=allowed, tenant=request.tenant, pool=request.pool, resource=request.resource, hard=amount
        )
    else:
        quota = quotas.change_quota(principal=allowed, quota=quota, hard=(quota.hard or 0) + amount)
    granted: dict[str, Any] = {"granted_amount": amount, "granted_until": until, "decided_at": timezone.now(), **answer}
    if action == "approve":
        granted["answered_by"] = principal.name
    request.change(state=RequestState.APPROVED, **granted)
    _note(request, principal=principal, action=action, amount=amount, until=until, quota=quota.pk, hard=quota.hard)
    return request


def _require_limit(request: QuotaRequest) -> ResourceQuota | None:
    """Return the quota to raise; None if it would be created. Raises NotLimited."""
    quota = _quota_of(request)
    absent = quota is None and request.resource not in ZERO_WITHOUT_ROW
    if absent or (quota is not None and quota.hard is None):
        where = f"in pool {request.pool}" if request.pool else "over all pools"
        raise NotLimited(
            f"{request.tenant.slug} has no limit of {request.resource} {where}: there is nothing to raise.",
            resource=request.resource,
            pool=request.pool and request.pool.name,
        )
    return quota


def _quota_of(request: QuotaRequest) -> ResourceQuota | None:
    mine = ResourceQuota.objects.filter(tenant=request.tenant, pool=request.pool, resource=request.resource)
    return mine.select_related("tenant").first()


def _lock_row(request: QuotaRequest, versions: etags.Versions, *allowed: str) -> QuotaRequest:
    """Return the request under its row lock. Raises PreconditionFailed, WrongState."""
    rows = QuotaRequest.objects.select_for_update(of=("self",)).select_related("tenant", "pool")
    request = rows.get(pk=request.pk)
    etags.check(request.version, versions)
    if request.state not in allowed:
        raise WrongState(
            f"The request is {request.state}: this needs it to be {' or '.join(allowed)}.",
            state=request.state,
            allowed=[str(state) for state in allowed],
        )
    return request


def person_of(name: str) -> str:
    """Return the person of a principal's name, without the token: `user:max via token ci` is `user:max`."""
    return name.partition(" via ")[0]


def _administers(principal: Principal, tenant: Tenant) -> bool:
    return principal.is_operator or tenant.pk in principal.with_role(Role.ADMIN)


def _refuse_past(until: datetime | None) -> None:
    if until is not None and until <= timezone.now():
        raise DatePassed(f"{until:%Y-%m-%d %H:%M} UTC has passed: choose a later date.", until=until)


def _note(request: QuotaRequest, *, principal: Principal, action: str, **facts: Any) -> None:
    told = {name: value.isoformat() if isinstance(value, datetime) else value for name, value in facts.items()}
    audit.record(
        principal=principal,
        action=f"quota-request.{action}",
        object_type="quota-request",
        object_id=request.uid,
        tenant=request.tenant,
        after={"resource": request.resource, "pool": request.pool and request.pool.name, **told},
    )
    if action in DECISIONS:
        asked = {"uid": request.uid, "resource": request.resource, "pool": request.pool and request.pool.name}
        tell(
            EventKind.QUOTA_REQUEST_DECIDED,
            tenant=request.tenant,
            request={**asked, "amount": request.amount, "state": request.state, "words": request.words},
            granted_amount=request.granted_amount,
            granted_until=request.granted_until,
        )
