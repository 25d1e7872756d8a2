"""Names of nodes in Kubernetes: an agent cannot take the name of another node."""

from django.db.models import Q

from apps.nodes.models import Node
from apps.nodes.providers import vouched_name
from gpucloud.errors import Conflict
from gpucloud.locks import serialize_transaction


class KubernetesNameTaken(Conflict, code="kubernetes-name-taken", title="The name in Kubernetes is another node's"):
    """The hello has the Kubernetes name of another node, or not the one for which the cluster vouched."""


def require_own_name(*, node: Node, name: str) -> None:
    """Return if the node may have this name in Kubernetes. Raises KubernetesNameTaken.

    An agent says the name itself, and pods, ResourceClaims and slices go by it. The name for which a cluster vouched,
    when the node joined by it, is that node's alone: another node of the pool loses it. Else the first node of the pool
    keeps it until it is forgotten. Call it in the transaction that stores the name.
    """
    if not name:
        return
    vouched = vouched_name.get()(node)
    if vouched and vouched != name:
        raise KubernetesNameTaken(
            f"Set GPUCLOUD_KUBERNETES_NODE={vouched}, not {name}: node {node.name} joined its cluster by that name.",
            node=node.name,
        )
    if name == node.kubernetes_node:
        return
    # Two agents that say the name at the same moment: the second one sees the first.
    serialize_transaction(f"kubernetes-node:{node.pool_id}:{name}")
    others = Node.objects.filter(pool=node.pool_id, last_seen_at__isnull=False).exclude(pk=node.pk)
    if vouched:
        others.filter(kubernetes_node=name).update(kubernetes_node="", dra=False)
        return
    owner = others.filter(Q(kubernetes_node=name) | Q(kubernetes_node="", name=name)).first()
    if owner is not None:
        raise KubernetesNameTaken(
            f"Run `gpucloud node forget {owner.name}` if that machine is gone: {name} is its name in Kubernetes.",
            node=owner.name,
        )
