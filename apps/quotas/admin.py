"""Admin pages of this app's records."""

from apps.quotas import models
from apps.quotas.models.sign_in import Identity
from gpucloud.web.records import register

register(models.User, "username", "email", "is_operator", "is_active", find=("username", "email"))
register(models.Tenant, "slug", "name", "weight", "cohort", find=("slug", "name"))
register(models.Membership, "tenant", "user", "role", find=("tenant__slug", "user__username"))
register(models.Pool, "name", "description", "sharing_policy", find=("name",))
register(
    models.ResourceQuota, "tenant", "pool", "resource", "hard", "used", find=("tenant__slug",), narrow=("resource",)
)
register(models.Organisation, "slug", "name", "parent", find=("slug", "name"))
register(
    models.OrganisationQuota,
    "organisation",
    "pool",
    "resource",
    "hard",
    "used",
    find=("organisation__slug",),
    narrow=("resource",),
)
register(
    models.LedgerEntry,
    "tenant",
    "pool",
    "resource",
    "kind",
    "amount",
    "used",
    "hard",
    "claim_uid",
    find=("claim_uid",),
    narrow=("resource", "kind"),
)
register(models.AuditEvent, "at", "actor", "action", "object_type", "object_id", find=("object_id",))
register(
    models.QuotaRequest, "tenant", "pool", "resource", "amount", "state", find=("tenant__slug",), narrow=("state",)
)
register(models.Token, "key", "name", "tenant", "user", "role", "expires_at", "revoked_at", find=("key", "name"))
# Without its address: the path may be a secret.
register(models.Webhook, "uid", "tenant", "enabled", "failures", find=("tenant__slug",))
register(models.Budget, "tenant", "period", "gpu_hours", find=("tenant__slug",))
register(models.LimitRange, "tenant", "pool", "field", "minimum", "maximum", find=("tenant__slug",))
register(models.MemberLimit, "tenant", "user", "resource", "hard", find=("tenant__slug",))
register(models.Price, "gpu_model", "pool", "valid_from", "per_gpu_hour", find=("gpu_model",))
register(models.CohortShare, "cohort", "pool", "resource", "lendable", "taken", find=("cohort",))
register(Identity, "user", "issuer", "created_at", find=("user__username",))
