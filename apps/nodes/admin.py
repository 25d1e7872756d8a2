"""Admin pages of nodes, GPUs and conditions."""

from apps.nodes.models import Condition, Gpu, Node
from gpucloud.web.records import register

register(Node, "name", "pool", "cordoned", "agent_version", "last_seen_at", find=("name", "hostname"))
register(Gpu, "uuid", "node", "index", "model", "core_used", "memory_used_mib", find=("uuid", "node__name"))
register(Condition, "node", "gpu", "type", "status", "reason", "since", find=("node__name",))
