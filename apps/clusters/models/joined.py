"""Nodes of ours that joined by a cluster's word."""

from django.db import models

from apps.clusters.models.cluster import Cluster
from apps.nodes.models import Node


class JoinedNode(models.Model):
    """A machine of a cluster and the node that it became: no other cluster's word counts for that node."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="joined_nodes")
    kubernetes_node = models.CharField(max_length=253)
    node = models.OneToOneField(Node, on_delete=models.CASCADE, related_name="joined_by")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["pk"]
        constraints = [models.UniqueConstraint(fields=["cluster", "kubernetes_node"], name="node_joins_once")]

    def __str__(self) -> str:
        return f"{self.cluster}/{self.kubernetes_node} → {self.node}"
