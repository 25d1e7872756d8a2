"""The first steps of an empty installation: a node, a tenant with a quota, a claim."""

from dataclasses import dataclass

from django.db.models import Q
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from apps.nodes.models import Node
from apps.quotas.models import ResourceQuota
from apps.quotas.principals import Principal
from apps.scheduling.models import Claim


@dataclass(frozen=True, slots=True)
class Step:
    """One step: whether it is done, and its commands."""

    done: bool
    title: Promise
    detail: Promise
    commands: str


NODE = "gpucloud node add gpu1 --pool default"
TENANT = """gpucloud tenant create physics --name Physics
gpucloud quota create --tenant physics --resource core_percent --hard 400
gpucloud quota create --tenant physics --resource memory_mib --hard 64GiB"""
CLAIM = "gpucloud claim create --tenant physics --core 25 --memory 8GiB"


def first_steps(principal: Principal) -> list[Step]:
    """Return the three steps to an operator until the first claim was made; then none, by one query."""
    if not principal.is_operator or Claim.objects.exists():
        return []
    return [
        Step(
            Node.objects.filter(last_seen_at__isnull=False).exists(),
            _("A node"),
            _("It prints one line: run it on the machine with the GPUs, as root. Ticked when its agent reports."),
            NODE,
        ),
        Step(
            ResourceQuota.objects.filter(Q(hard=None) | Q(hard__gt=0)).exists(),
            _("A tenant with a quota"),
            _("A tenant with its quota: here the compute of four GPUs and 64 GiB of their memory."),
            TENANT,
        ),
        Step(False, _("A claim"), _("A quarter of a GPU and 8 GiB. This list goes when it is made."), CLAIM),
    ]
