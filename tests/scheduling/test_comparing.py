"""The scheduler's comparison of its memory with the database warns of what nobody was told of, and of nothing else."""

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
from tests.scheduling.test_picture import nobody_tells

pytestmark = pytest.mark.django_db(transaction=True)
WARNING = "rows were not as they were kept"


@pytest.fixture
def command(real_cast: Cast, monkeypatch: pytest.MonkeyPatch) -> Command:
    """A scheduler that leads the pool, with what it knew a moment ago."""
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
    # Of its four GPUs the comparison once said that they were not as they were kept.
    with nobody_tells():
        lose(machine)
    with caplog.at_level(logging.WARNING):
        command._compare()
    assert WARNING not in caplog.text


def test_a_change_whose_notice_is_still_on_its_way_is_no_warning(
    command: Command, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, looks = command.session.receive, list[float]()

    def late(*, seconds: float = 0) -> object:
        """On a machine under load the listening session is told after the change can be read."""
        looks.append(seconds)
        return heard(seconds=seconds) if seconds else {}

    change_node(principal=SYSTEM, node=Node.objects.get(), cordoned=True)
    monkeypatch.setattr(command.session, "receive", late)
    with caplog.at_level(logging.WARNING):
        command._compare()
    assert WARNING not in caplog.text
    # The control: it was waited for, since something differed.
    assert max(looks) > 0


def test_what_nobody_was_told_of_is_a_warning(command: Command, caplog: pytest.LogCaptureFixture) -> None:
    with nobody_tells():
        change_node(principal=SYSTEM, node=Node.objects.get(), cordoned=True)
    with caplog.at_level(logging.WARNING):
        command._compare()
    assert f"4 {WARNING}" in caplog.text
