"""Conditions of a node and its GPUs, as its agent reports them."""

from django.db import models
from django.db.models import Q

from apps.nodes.models.gpu import Gpu
from apps.nodes.models.node import Node

WORDS = 63


class Condition(models.Model):
    """The last report of one condition; of the node itself if `gpu` is null."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="conditions")
    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="conditions", null=True)
    type = models.CharField(max_length=WORDS)
    # "True", "False" or "Unknown", as in Kubernetes.
    status = models.CharField(max_length=7)
    reason = models.CharField(max_length=WORDS)
    message = models.CharField(max_length=2000, blank=True, default="")
    # By the agent's clock, exactly as reported.
    since_seconds = models.FloatField()
    since = models.DateTimeField()
    unschedulable = models.BooleanField(default=False)

    class Meta:
        ordering = ["node_id", "gpu_id", "type"]
        constraints = [
            models.UniqueConstraint(fields=["node", "type"], condition=Q(gpu=None), name="condition_of_node"),
            models.UniqueConstraint(fields=["gpu", "type"], condition=~Q(gpu=None), name="condition_of_gpu"),
        ]

    def __str__(self) -> str:
        return f"{self.type}={self.status} ({self.reason})"
