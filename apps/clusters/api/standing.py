"""/clusters/{name}/connection/ and quotas/: live checks of a cluster."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.clusters.api.clusters import ClusterView
from apps.clusters.services import connections, quota_drift
from gpucloud.api import shown
from gpucloud.api.serializers import Strict


class MissingSerializer(Strict):
    """A permission that is missing in the cluster."""

    verb = shown.text()
    resource = shown.text()
    group = shown.text("API group; empty: the core group.")
    purpose = shown.text("Purpose of the permission.")


class TriedSerializer(Strict):
    """Result of a connection check."""

    reached = shown.flag()
    reason = shown.text("Reason why it was not reached; empty if it was.")
    kubernetes_version = shown.text()
    answer_seconds = shown.number("Response time of the first request.", null=True)
    missing = MissingSerializer(
        many=True, read_only=True, help_text="Permissions that the account does not have there."
    )


class AmountSerializer(Strict):
    """One resource of one namespace; null: not limited."""

    namespace = shown.text()
    tenant = shown.text()
    resource = shown.text("Name in the ResourceQuota.")
    wanted = shown.integer("Amount by the tenant's quotas.", null=True)
    there = shown.integer("Amount in the ResourceQuota `gpucloud`.", null=True)
    used = shown.integer("Usage that Kubernetes counts.", null=True)
    in_step = shown.flag()


class NeverCountedSerializer(Strict):
    """An amount in a ResourceQuota that Kubernetes never counts."""

    namespace = shown.text()
    quota = shown.text()
    resource = shown.text()


class ClusterQuotasSerializer(Strict):
    """ResourceQuotas compared with tenants' quotas."""

    synced = shown.flag("`sync_quotas` of the cluster: differences are corrected within seconds.")
    reason = shown.text("Reason why the cluster did not answer; empty if it did.")
    amounts = AmountSerializer(many=True, read_only=True)
    never_counted = NeverCountedSerializer(many=True, read_only=True)


class Connection(ClusterView):
    """A cluster's connection."""

    serializer_class: Any = TriedSerializer

    def get(self, request: Request, name: str) -> Response:
        """Check the connection now: reachability and missing permissions (operators)."""
        tried = connections.attempt(principal=self.principal, cluster=self.find(name))
        return Response(TriedSerializer(tried).data)


class Quotas(ClusterView):
    """A cluster's ResourceQuotas."""

    serializer_class: Any = ClusterQuotasSerializer

    @extend_schema(operation_id="clusters_quotas_retrieve")
    def get(self, request: Request, name: str) -> Response:
        """Compare the namespaces' ResourceQuotas with their tenants' quotas now (operators)."""
        standing = quota_drift.read(principal=self.principal, cluster=self.find(name))
        return Response(ClusterQuotasSerializer(standing).data)
