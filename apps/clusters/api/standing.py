"""/clusters/{name}/connection/ and quotas/: what a cluster says when it is asked now."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.clusters.api.clusters import ClusterView
from apps.clusters.services import connections, quota_drift
from gpucloud.api.serializers import Strict


class MissingSerializer(Strict):
    """A right that is missing there."""

    verb = serializers.CharField(read_only=True)
    resource = serializers.CharField(read_only=True)
    group = serializers.CharField(read_only=True, help_text="Of the API; empty: the core one.")
    purpose = serializers.CharField(read_only=True, help_text="What it is needed for.")


class TriedSerializer(Strict):
    """A connection that was tried."""

    reached = serializers.BooleanField(read_only=True)
    reason = serializers.CharField(read_only=True, help_text="Why it was not reached; empty: it was.")
    kubernetes_version = serializers.CharField(read_only=True)
    answer_seconds = serializers.FloatField(read_only=True, allow_null=True, help_text="Of the first answer.")
    missing = MissingSerializer(many=True, read_only=True, help_text="Rights that our account does not have there.")


class AmountSerializer(Strict):
    """One resource of one namespace; null: not limited."""

    namespace = serializers.CharField(read_only=True)
    tenant = serializers.CharField(read_only=True)
    resource = serializers.CharField(read_only=True, help_text="As the ResourceQuota names it.")
    wanted = serializers.IntegerField(read_only=True, allow_null=True, help_text="By its tenant's quotas.")
    there = serializers.IntegerField(read_only=True, allow_null=True, help_text="In the ResourceQuota `gpucloud`.")
    used = serializers.IntegerField(read_only=True, allow_null=True, help_text="As Kubernetes counts.")
    in_step = serializers.BooleanField(read_only=True)


class NeverCountedSerializer(Strict):
    """An amount in somebody's ResourceQuota that Kubernetes never counts."""

    namespace = serializers.CharField(read_only=True)
    quota = serializers.CharField(read_only=True)
    resource = serializers.CharField(read_only=True)


class ClusterQuotasSerializer(Strict):
    """ResourceQuotas against tenants' quotas."""

    synced = serializers.BooleanField(
        read_only=True, help_text="`sync_quotas` of the cluster: what is out of step is put right within seconds."
    )
    reason = serializers.CharField(read_only=True, help_text="Why the cluster could not be asked; empty: it was.")
    amounts = AmountSerializer(many=True, read_only=True)
    never_counted = NeverCountedSerializer(many=True, read_only=True)


class Connection(ClusterView):
    """A cluster's connection."""

    serializer_class: Any = TriedSerializer

    def get(self, request: Request, name: str) -> Response:
        """Try it now: does its API server answer, and what may our account not do there (operators)?"""
        tried = connections.attempt(principal=self.principal, cluster=self.find(name))
        return Response(TriedSerializer(tried).data)


class Quotas(ClusterView):
    """A cluster's ResourceQuotas."""

    serializer_class: Any = ClusterQuotasSerializer

    @extend_schema(operation_id="clusters_quotas_retrieve")
    def get(self, request: Request, name: str) -> Response:
        """Compare the namespaces' ResourceQuotas with their tenants' quotas, now (operators)."""
        standing = quota_drift.read(principal=self.principal, cluster=self.find(name))
        return Response(ClusterQuotasSerializer(standing).data)
