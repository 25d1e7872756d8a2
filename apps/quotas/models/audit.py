"""The audit log: actor, action, source, and the object before and after. Append-only, by a trigger."""

from django.db import models

from apps.quotas.models.row import Owned
from apps.quotas.models.tenant import Tenant


class AuditEventQuerySet(Owned["AuditEvent"]):
    """Audit events, filtered by principal."""

    least_role = "admin"


class AuditEvent(models.Model):
    """One audited change."""

    at = models.DateTimeField(auto_now_add=True, db_index=True)
    actor = models.CharField(
        max_length=200, help_text="`user:anna`, `user:anna via token ci (gpc_…)`, `agent:gpu1` or `system`."
    )
    action = models.CharField(max_length=60, help_text="`claim.resize`, `quota.set`, …")
    object_type = models.CharField(max_length=30)
    # `TENANT/USERNAME` of a membership is the longest: 63 + 1 + 150.
    object_id = models.CharField(max_length=255)
    # No constraint: the log outlives its objects.
    tenant = models.ForeignKey(Tenant, on_delete=models.DO_NOTHING, db_constraint=False, null=True, related_name="+")
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    source_ip = models.GenericIPAddressField(null=True)
    # The chain, written once by the sealer a moment after the commit: the database refuses any other change.
    position = models.BigIntegerField(null=True, unique=True)
    digest = models.CharField(max_length=64, null=True)

    objects = AuditEventQuerySet.as_manager()

    class Meta:
        ordering = ["pk"]
        indexes = [
            models.Index(fields=["object_type", "object_id"], name="audit_of_object"),
            models.Index(fields=["tenant", "-id"], name="audit_of_tenant"),
            models.Index(fields=["actor", "-id"], name="audit_by_actor"),
            models.Index(fields=["id"], condition=models.Q(position=None), name="audit_unsealed"),
        ]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.object_id}"
