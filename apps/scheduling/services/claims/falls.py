"""Falls of claims: programs that lost their GPU together, as they shared an MPS server."""

from agent import wire
from apps.nodes.models import Node
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from apps.scheduling.models import Claim

ACTION = "claim.fall"


def record_fall(node: Node, code: str, uids: list[wire.Uid]) -> None:
    """Record for each of these claims of the node that it fell, with the names and uids of its tenant's others.

    Claims of other tenants are only counted.
    """
    claims = list(Claim.objects.filter(uid__in=uids, assignments__gpu__node=node).select_related("tenant").distinct())
    for claim in claims:
        own = sorted((one.name, str(one.uid)) for one in claims if one.tenant_id == claim.tenant_id and one != claim)
        others = sum(one.tenant_id != claim.tenant_id for one in claims)
        after = {"cause": code, "with": own, "others": others}
        audit.record(Principal(name=f"agent:{node.name}"), ACTION, claim, tenant=claim.tenant, after=after)
