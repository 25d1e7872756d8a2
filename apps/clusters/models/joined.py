"""Nodes that joined through their cluster."""

from django.db import models

from apps.clusters.models.cluster import Cluster
from apps.nodes.models import Node


class JoinedNode(models.Model):
    """A cluster's machine and its node here; only this cluster may vouch for the node's agent."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="joined_nodes")
    kubernetes_node = models.CharField(max_length=253)
    node = models.OneToOneField(Node, on_delete=models.CASCADE, related_name="joined_by")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["pk"]
        constraints = [models.UniqueConstraint(fields=["cluster", "kubernetes_node"], name="node_joins_once")]

    def __str__(self) -> str:
        return f"{self.cluster}/{self.kubernetes_node} → {self.node}"
