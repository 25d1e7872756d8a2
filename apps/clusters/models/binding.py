"""Bindings of namespaces to the tenants that pay for their pods."""

from django.db import models
from django.db.models import Q

from apps.clusters.models.cluster import Cluster
from apps.quotas.models import Tenant
from apps.quotas.models.row import Owned, Row, checks


class NamespaceBindingQuerySet(Owned["NamespaceBinding"]):
    """Bindings, filtered by principal."""


class NamespaceBinding(Row):
    """Binding of a namespace by name, or of all namespaces with certain labels, to a tenant.

    A name wins over labels; of several bindings by labels the oldest wins. Pods of a namespace without a binding are
    charged to nobody.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="bindings")
    namespace = models.CharField(max_length=63, null=True)
    # Labels that a namespace must have; empty: every namespace.
    selector = models.JSONField(null=True)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="namespaces")

    objects = NamespaceBindingQuerySet.as_manager()

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "namespace"], name="binding_once"),
            *checks(binding_by_name_or_labels=Q(namespace__isnull=True) ^ Q(selector__isnull=True)),
        ]

    def __str__(self) -> str:
        return f"{self.cluster}/{self.namespace or self.selector} → {self.tenant}"

    def matches(self, name: str, labels: dict[str, str]) -> bool:
        """Return True if the binding applies to the namespace of this name and these labels."""
        if self.namespace is not None:
            return self.namespace == name
        return all(labels.get(key) == value for key, value in (self.selector or {}).items())
