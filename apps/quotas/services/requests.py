"""Requests for quota or a budget, and answers: each under the request's row lock, so that two operators decide once.

Order of locks: the request, then as everywhere: pools, tenants, shares, quotas; a budget after its tenant. A quota is
raised and lowered by amounts, read under its tenant's lock, so concurrent changes of it are kept; so is a budget, under
its own row lock.
"""

from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db import transaction
from django.utils import timezone

from apps.quotas.models import Budget, EventKind, Pool, QuotaRequest, ResourceQuota, Role, Tenant
from apps.quotas.models.request import UNANSWERED, UNDECIDED, RequestState
from apps.quotas.models.resource import ZERO_WITHOUT_ROW
from apps.quotas.principals import SYSTEM, Principal
from apps.quotas.services import audit, budgets, charging, overcommit, quotas
from apps.quotas.services.webhooks.outbox import tell
from gpucloud.api import etags
from gpucloud.errors import Conflict, Invalid

# Actions that answer a request, or end the answer.
DECISIONS = frozenset({"approve", "counter", "accept", "deny", "lapse"})
# More than the hours of any fleet, and less than a budget's column holds.
MOST_HOURS = 10**9


class WrongState(Conflict, code="wrong-state", title="The request's state does not allow this"):
    """The request's state does not allow this."""


class NotLimited(Conflict, code="not-limited", title="This is not limited"):
    """There is no limit that could be raised."""


class DatePassed(Invalid, code="date-passed", title="This moment has passed"):
    """The requested or offered end is in the past."""


class BudgetTooLarge(Invalid, code="budget-too-large", title="The budget would be too large"):
    """The budget would have more hours than any fleet."""


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
    period: str | None = None,
) -> QuotaRequest:
    """Request `amount` more, for good or until a time; of a member, the tenant's admins pass it on to the operators.

    `period` is for GPU-hours of a budget, and only for these. Raises RoleMissing, NotLimited, DatePassed,
    BudgetTooLarge.
    """
    principal.require_role(tenant, "member")
    _refuse_past(until)
    request = QuotaRequest(
        tenant=tenant, pool=pool, resource=resource, amount=amount, until=until, reason=reason, period=period
    )
    _require_raisable(request, amount, until)
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
    """Offer another amount or end, which counts once the tenant accepts it.

    Raises WrongState, DatePassed, NotLimited, BudgetTooLarge.
    """
    principal.require_operator()
    request = _lock_row(request, versions, *UNDECIDED)
    _refuse_past(until)
    if request.of_budget:
        _hours_after(request, _budget_of(request), amount, until)
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
    """Lower the quota or the budget by the granted amount, to zero at least; holdings above it stay, as `excess`."""
    request = QuotaRequest.objects.select_for_update(of=("self",)).select_related("tenant", "pool").get(pk=pk)
    if request.state != RequestState.APPROVED:
        return False  # another worker was faster
    assert request.granted_amount is not None
    assert request.decided_at is not None
    overcommit.lock(request.pool)
    charging.lock_tenants(request.tenant, exclusive=True)
    lowered = _lower_budget(request) if request.of_budget else _lower_quota(request)
    request.change(state=RequestState.LAPSED)
    _note(request, principal=SYSTEM, action="lapse", amount=request.granted_amount, **lowered)
    return True


def _lower_quota(request: QuotaRequest) -> dict[str, Any]:
    assert request.granted_amount is not None
    assert request.decided_at is not None
    quota = _quota_of(request)
    if quota is not None and quota.created_at > request.decided_at:
        quota = None  # created since, in place of the one that was raised
    hard = None if quota is None else quota.hard
    if quota is not None and hard is not None:
        # Without a limit, or without the quota, there is nothing to lower.
        hard = max(0, hard - request.granted_amount)
        quotas.change_quota(principal=SYSTEM, quota=quota, hard=hard)
    return {"quota": quota and quota.pk, "hard": hard}


def _lower_budget(request: QuotaRequest) -> dict[str, Any]:
    assert request.granted_amount is not None
    assert request.decided_at is not None
    budget = _budget_of(request)
    if budget is None or budget.created_at > request.decided_at:
        return {"budget": None, "gpu_hours": None}
    hours = max(Decimal(0), budget.gpu_hours - request.granted_amount)
    budgets.change_budget(principal=SYSTEM, budget=budget, gpu_hours=hours)
    return {"budget": budget.pk, "gpu_hours": str(hours)}


def _grant(
    request: QuotaRequest,
    amount: int,
    until: datetime | None,
    *,
    principal: Principal,
    action: str,
    **answer: str,
) -> QuotaRequest:
    """Raise the quota or the budget by `amount`, or create it, in the caller's transaction."""
    _refuse_past(until)
    overcommit.lock(request.pool)
    charging.lock_tenants(request.tenant, exclusive=True)
    # Accepting an offer executes an operator's decision in the tenant admin's name.
    allowed = replace(principal, is_operator=True)
    if request.of_budget:
        raised = _raise_budget(request, amount, until, allowed)
    else:
        raised = _raise_quota(request, amount, allowed)
    granted: dict[str, Any] = {"granted_amount": amount, "granted_until": until, "decided_at": timezone.now(), **answer}
    if action == "approve":
        granted["answered_by"] = principal.name
    request.change(state=RequestState.APPROVED, **granted)
    _note(request, principal=principal, action=action, amount=amount, until=until, **raised)
    return request


def _raise_quota(request: QuotaRequest, amount: int, allowed: Principal) -> dict[str, Any]:
    quota = _require_limit(request)
    if quota is None:
        quota = quotas.create_quota(
            principal=allowed, tenant=request.tenant, pool=request.pool, resource=request.resource, hard=amount
        )
    else:
        quota = quotas.change_quota(principal=allowed, quota=quota, hard=(quota.hard or 0) + amount)
    return {"quota": quota.pk, "hard": quota.hard}


def _raise_budget(request: QuotaRequest, amount: int, until: datetime | None, allowed: Principal) -> dict[str, Any]:
    budget = _budget_of(request)
    hours = _hours_after(request, budget, amount, until)
    if budget is None:
        assert request.period is not None
        budget = budgets.create_budget(principal=allowed, tenant=request.tenant, period=request.period, gpu_hours=hours)
    else:
        budget = budgets.change_budget(principal=allowed, budget=budget, gpu_hours=hours)
    return {"budget": budget.pk, "gpu_hours": str(hours)}


def _require_raisable(request: QuotaRequest, amount: int, until: datetime | None) -> None:
    """Check that there is something to raise, or to create. Raises NotLimited, BudgetTooLarge."""
    if request.of_budget:
        _hours_after(request, _budget_of(request), amount, until)
    else:
        _require_limit(request)


def _hours_after(request: QuotaRequest, budget: Budget | None, amount: int, until: datetime | None) -> Decimal:
    """Return the hours of the raised budget. Raises NotLimited, BudgetTooLarge.

    A first budget is for good: its end would leave the tenant with a budget of nothing.
    """
    if budget is None and until is not None:
        raise NotLimited(
            f"{request.tenant.slug} has no budget of this period that could be raised until a time. A first budget is "
            "for good: leave `until` out.",
            resource=request.resource,
            pool=None,
        )
    hours = Decimal(amount) + (budget.gpu_hours if budget else 0)
    if hours > MOST_HOURS:
        raise BudgetTooLarge(f"The budget would have more than {MOST_HOURS} GPU-hours.", max_gpu_hours=MOST_HOURS)
    return hours


def _budget_of(request: QuotaRequest) -> Budget | None:
    """Return the budget that the request is for, under its row lock."""
    mine = Budget.objects.filter(tenant=request.tenant, period=request.period)
    return mine.select_for_update(of=("self",)).first()


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
    request = etags.lock(request, versions, "tenant", "pool")
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
    audit.record(principal, f"quota-request.{action}", request, after={**_subject(request), **told})
    if action in DECISIONS:
        asked = {"uid": request.uid, **_subject(request)}
        tell(
            EventKind.QUOTA_REQUEST_DECIDED,
            tenant=request.tenant,
            request={**asked, "amount": request.amount, "state": request.state, "words": request.words},
            granted_amount=request.granted_amount,
            granted_until=request.granted_until,
        )


def _subject(request: QuotaRequest) -> dict[str, Any]:
    """Return the facts that name the quota or the budget."""
    return {"resource": request.resource, "pool": request.pool and request.pool.name, "period": request.period}
