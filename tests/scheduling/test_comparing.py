"""The scheduler's comparison of its memory with the database warns of changes without a notice, and of nothing else."""

import logging

import pytest

from apps.nodes.models import Node
from apps.nodes.services.nodes import change_node
from apps.quotas.principals import SYSTEM
from apps.scheduling.management.commands import scheduler
from apps.scheduling.management.commands.scheduler import Command
from apps.scheduling.services.failures import Backoff
from tests.cast import Cast, Machine, give_plenty, lose
from tests.scheduling.life import Kept
from tests.scheduling.test_pool_snapshots import disable_notices

pytestmark = pytest.mark.django_db(transaction=True)
WARNING = "rows were not as they were kept"


@pytest.fixture
def command(real_cast: Cast, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a scheduler that leads the pool, with its state of a moment ago."""
    monkeypatch.setattr(scheduler, "LATE_NOTICE_SECONDS", 0.2, raising=False)
    give_plenty(real_cast.acme)
    Machine("gpu1", real_cast.pool)
    kept = Kept(real_cast.pool)
    kept.hear()
    made = Command()
    made.backoff = Backoff(first_seconds=1, most_seconds=1)
    made.session, made.caches = kept.session, {real_cast.pool.pk: kept.cache}
    return made


def test_a_node_that_just_fell_silent_is_no_warning(
    command: Command, real_cast: Cast, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine("gpu2", real_cast.pool)
    command._receive()
    # The comparison once reported all of its four GPUs as different.
    with disable_notices():
        lose(machine)
    with caplog.at_level(logging.WARNING):
        command._compare()
    assert WARNING not in caplog.text


def test_a_change_whose_notice_is_still_on_its_way_is_no_warning(
    command: Command, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, looks = command.session.receive, list[float]()

    def delay_notices(*, seconds: float = 0) -> object:
        """Delay notices: on a machine under load they arrive after the change can be read."""
        looks.append(seconds)
        return heard(seconds=seconds) if seconds else {}

    change_node(principal=SYSTEM, node=Node.objects.get(), cordoned=True)
    monkeypatch.setattr(command.session, "receive", delay_notices)
    with caplog.at_level(logging.WARNING):
        command._compare()
    assert WARNING not in caplog.text
    # The control: the comparison waited, because something differed.
    assert max(looks) > 0


def test_what_nobody_was_told_of_is_a_warning(command: Command, caplog: pytest.LogCaptureFixture) -> None:
    with disable_notices():
        change_node(principal=SYSTEM, node=Node.objects.get(), cordoned=True)
    with caplog.at_level(logging.WARNING):
        command._compare()
    assert f"4 {WARNING}" in caplog.text
