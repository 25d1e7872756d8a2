"""Models of this app, a module per noun."""

from apps.clusters.models.binding import NamespaceBinding
from apps.clusters.models.cluster import Cluster, ClusterState, Placement
from apps.clusters.models.device_claim import DeviceClaim
from apps.clusters.models.hold import PodHold
from apps.clusters.models.joined import JoinedNode
from apps.clusters.models.pod import PodClaim
from apps.clusters.models.resize import PodResize
from apps.clusters.models.sharepod import SharePod

__all__ = [
    "Cluster", "ClusterState", "DeviceClaim", "JoinedNode", "NamespaceBinding", "Placement", "PodClaim", "PodHold",
    "PodResize", "SharePod",
]  # fmt: skip
