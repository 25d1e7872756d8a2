"""/clusters/{name}/connection/ and quotas/: live checks of a cluster."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.clusters.api.clusters import ClusterView
from apps.clusters.services import connections, quota_drift
from gpucloud.api.serializers import Strict


class MissingSerializer(Strict):
    """A permission that is missing in the cluster."""

    verb = serializers.CharField(read_only=True)
    resource = serializers.CharField(read_only=True)
    group = serializers.CharField(read_only=True, help_text="API group; empty: the core group.")
    purpose = serializers.CharField(read_only=True, help_text="Purpose of the permission.")


class TriedSerializer(Strict):
    """Result of a connection check."""

    reached = serializers.BooleanField(read_only=True)
    reason = serializers.CharField(read_only=True, help_text="Reason why it was not reached; empty if it was.")
    kubernetes_version = serializers.CharField(read_only=True)
    answer_seconds = serializers.FloatField(
        read_only=True, allow_null=True, help_text="Response time of the first request."
    )
    missing = MissingSerializer(
        many=True, read_only=True, help_text="Permissions that the account does not have there."
    )


class AmountSerializer(Strict):
    """One resource of one namespace; null: not limited."""

    namespace = serializers.CharField(read_only=True)
    tenant = serializers.CharField(read_only=True)
    resource = serializers.CharField(read_only=True, help_text="Name in the ResourceQuota.")
    wanted = serializers.IntegerField(read_only=True, allow_null=True, help_text="Amount by the tenant's quotas.")
    there = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Amount in the ResourceQuota `gpucloud`."
    )
    used = serializers.IntegerField(read_only=True, allow_null=True, help_text="Usage that Kubernetes counts.")
    in_step = serializers.BooleanField(read_only=True)


class NeverCountedSerializer(Strict):
    """An amount in a ResourceQuota that Kubernetes never counts."""

    namespace = serializers.CharField(read_only=True)
    quota = serializers.CharField(read_only=True)
    resource = serializers.CharField(read_only=True)


class ClusterQuotasSerializer(Strict):
    """ResourceQuotas compared with tenants' quotas."""

    synced = serializers.BooleanField(
        read_only=True, help_text="`sync_quotas` of the cluster: differences are corrected within seconds."
    )
    reason = serializers.CharField(read_only=True, help_text="Reason why the cluster did not answer; empty if it did.")
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
