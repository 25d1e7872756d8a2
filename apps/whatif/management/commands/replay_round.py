"""The command `manage.py replay_round ID`: decide a recorded round again."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.scheduling.core.placement.policies import POLICIES
from apps.scheduling.models import Round
from apps.whatif.rounds import Comparison, replay, replay_with


class Command(BaseCommand):
    """The command; it changes nothing."""

    help = (
        "Decide a recorded round again, from its record; list different answers and exit with 1 if there are any. "
        "With --policy: show what another policy would have done."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the round and the policy."""
        parser.add_argument("round", type=int, help="its number, as in /api/v1/rounds/")
        parser.add_argument("--policy", choices=sorted(POLICIES), help="let this policy decide instead")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print a line for each answer that differs, and a summary."""
        done = Round.objects.select_related("base", "pool").filter(pk=options["round"]).first()
        if done is None:
            raise CommandError(f"There is no round {options['round']}. Rounds are kept for a week.")
        policy = options["policy"]
        compared = replay_with(done, policy) if policy else replay(done)
        different = [item for item in compared if not item.agrees]
        for item in different:
            self.stdout.write(f"{item.claim}: {_words(item.then)} then, {_words(item.now)} now")
        self.stdout.write(
            f"Round {done.pk} of pool {done.pool.name}, {done.base.policy}: {_placed(compared, 'then')} of "
            f"{len(compared)} claims placed."
        )
        if policy:
            self.stdout.write(
                f"{policy} would have placed {_placed(compared, 'now')}, {len(different)} of the answers are others."
            )
        elif different:
            raise CommandError(f"{len(different)} of {len(compared)} answers differ from the record.")
        else:
            self.stdout.write("Decided again: every answer is as it was recorded.")


def _words(answer: dict[str, Any]) -> str:
    if "gpus" in answer:
        return ", ".join(answer["gpus"]) or str(answer.get("node"))
    return "; ".join(reason["detail"] for reason in answer["reasons"])


def _placed(compared: list[Comparison], when: str) -> int:
    return sum("gpus" in getattr(item, when) for item in compared)
