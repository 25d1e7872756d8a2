"""Elastic groups of whole GPUs, and what happens to them while time passes."""

from dataclasses import dataclass
from typing import Any

from django.utils import timezone

from apps.groups import sizing
from apps.groups.members import publish
from apps.scheduling.models import Claim, ElasticGroup
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.reclaiming import preemption
from tests.cast import GIB, Cast, Machine, ask


@dataclass
class Training:
    """A group, and the machines on which it may run."""

    cast: Cast
    machines: list[Machine]
    first: Claim

    def step(self) -> None:
        """Let every part of the platform act once, and the agents obey."""
        preemption.drive()
        sizing.drive()
        run_round(self.cast.pool)
        for machine in self.machines:
            machine.obey()
        publish(self.group())

    def states(self) -> str:
        """Return the states of the members that are not released, oldest first; `!`: it has notice."""
        rows = Claim.objects.live().filter(group_uid=self.first.uid).order_by("pk")
        return " ".join(f"{claim.state}{'!' * (claim.preempt_at is not None)}" for claim in rows)

    def group(self) -> ElasticGroup:
        return ElasticGroup.objects.select_related("first__tenant", "first__pool").get(first=self.first)

    def ranks(self) -> list[int]:
        """Return the keys of the members that programs are told of, by rank."""
        keys = dict(Claim.objects.values_list("uid", "pk"))
        return [{str(uid): key for uid, key in keys.items()}[member["claim"]] for member in self.group().members]

    def grace_is_over(self) -> None:
        Claim.objects.filter(preempt_at__isnull=False).update(preempt_at=timezone.now())


def train(cast: Cast, *machines: Machine, least: int = 2, most: int = 4, **facts: Any) -> Training:
    """Make a group whose members are a GPU each."""
    asked = {"core_request": 100, "memory_mib": GIB, "group": "train", **facts}
    first = ask(cast, group_size=least, group_most=most, **asked)
    return Training(cast, list(machines), first)
