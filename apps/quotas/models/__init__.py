"""Models of this app, a module per noun."""

from apps.quotas.models.audit import AuditEvent
from apps.quotas.models.budget import Budget, BudgetPeriod
from apps.quotas.models.cohort import CohortShare
from apps.quotas.models.idempotency import IdempotencyRecord
from apps.quotas.models.limits import LimitRange, MemberLimit
from apps.quotas.models.organisation import Organisation, OrganisationQuota
from apps.quotas.models.people import Invitation, UserSession
from apps.quotas.models.pool import Pool, RebalanceMode, RebalancePolicy, SharingPolicy
from apps.quotas.models.price import Price
from apps.quotas.models.quota import LedgerEntry, ResourceQuota
from apps.quotas.models.request import QuotaRequest
from apps.quotas.models.resource import Resource
from apps.quotas.models.sign_in import Attempts, Identity
from apps.quotas.models.tenant import Membership, Role, Tenant, User
from apps.quotas.models.token import Token
from apps.quotas.models.webhook import EventKind, Webhook, WebhookDelivery

__all__ = [
    "Attempts",
    "AuditEvent",
    "Budget",
    "BudgetPeriod",
    "CohortShare",
    "EventKind",
    "IdempotencyRecord",
    "Identity",
    "Invitation",
    "LedgerEntry",
    "LimitRange",
    "MemberLimit",
    "Membership",
    "Organisation",
    "OrganisationQuota",
    "Pool",
    "Price",
    "QuotaRequest",
    "RebalanceMode",
    "RebalancePolicy",
    "Resource",
    "ResourceQuota",
    "Role",
    "SharingPolicy",
    "Tenant",
    "Token",
    "User",
    "UserSession",
    "Webhook",
    "WebhookDelivery",
]
