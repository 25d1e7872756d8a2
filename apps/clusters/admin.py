"""Admin pages of this app's records."""

from apps.clusters.models import Cluster, DeviceClaim, NamespaceBinding, PodClaim, SharePod
from gpucloud.web.records import register

register(Cluster, "name", "pool", "server", "enabled", "state", find=("name",))
register(DeviceClaim, "cluster", "namespace", "name", "claim", find=("name", "namespace"))
register(NamespaceBinding, "cluster", "namespace", "tenant", find=("namespace",))
register(PodClaim, "cluster", "namespace", "pod", "container", "claim", find=("pod", "namespace"))
register(SharePod, "cluster", "namespace", "name", "claim", find=("name", "namespace"))
