"""Limits that are counted over rows: simultaneous requests get exactly the result of sequential ones.

Each race has a control: the same race without the lock goes past the limit.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from apps.quotas.models import Webhook
from apps.quotas.principals import SYSTEM
from apps.quotas.services.webhooks import hooks
from apps.scheduling.models import Claim
from apps.scheduling.models.choices import OverQuota
from apps.scheduling.services.claims import lifecycle
from gpucloud import locks
from tests.cast import Cast, ask, give, give_plenty
from tests.racing import outcomes, race

pytestmark = pytest.mark.django_db(transaction=True)

RACERS = 16
MOST = 4


@pytest.fixture
def remove_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the lock, and let no racer write before every racer has counted."""
    gate = threading.Barrier(RACERS)

    def late(count: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            result = count(*args, **kwargs)
            gate.wait(timeout=30)
            return result

        return counted

    monkeypatch.setattr(locks, "serialize_transaction", lambda what: None)
    monkeypatch.setattr(lifecycle, "_refuse_endless_queue", late(lifecycle._refuse_endless_queue))
    monkeypatch.setattr(lifecycle, "_refuse_other_size", late(lifecycle._refuse_other_size))
    monkeypatch.setattr(hooks, "_refuse_many", late(hooks._refuse_many))


def race_for_webhooks(cast: Cast, monkeypatch: pytest.MonkeyPatch, *, tenant: bool = True) -> dict[str, int]:
    monkeypatch.setattr(hooks, "MOST", MOST)
    owner = cast.acme if tenant else None
    make = partial(
        hooks.create, principal=SYSTEM, tenant=owner, url="https://hooks.example.org/", events=["claim.active"]
    )
    return dict(outcomes(race([make] * RACERS)))


@pytest.mark.parametrize("tenant", [True, False], ids=["of a tenant", "of the platform"])
def test_webhooks_are_never_more_than_their_limit(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch, tenant: bool
) -> None:
    assert race_for_webhooks(real_cast, monkeypatch, tenant=tenant) == {"tuple": MOST, "TooManyWebhooks": RACERS - MOST}
    assert Webhook.objects.count() == MOST


@pytest.mark.usefixtures("remove_lock")
def test_control_without_the_lock_webhooks_pass_their_limit(real_cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    assert race_for_webhooks(real_cast, monkeypatch)["tuple"] > MOST


def race_for_waiting(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    monkeypatch.setattr(lifecycle, "MOST_UNCHARGED", MOST)
    give(cast.acme, core_percent=0, memory_mib=None)
    return dict(outcomes(race([partial(ask, cast, when_over_quota=OverQuota.WAIT)] * RACERS)))


def test_claims_that_wait_for_quota_are_never_more_than_their_limit(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert race_for_waiting(real_cast, monkeypatch) == {"Claim": MOST, "TooManyWaiting": RACERS - MOST}
    assert Claim.objects.count() == MOST


@pytest.mark.usefixtures("remove_lock")
def test_control_without_the_lock_waiting_claims_pass_their_limit(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert race_for_waiting(real_cast, monkeypatch)["Claim"] > MOST


def race_for_a_group(cast: Cast) -> set[int | None]:
    """Start two racers for each of eight sizes; return the queued sizes afterwards."""
    give_plenty(cast.acme)
    race([partial(ask, cast, group="ring", group_size=2 + number % 8) for number in range(RACERS)])
    return set(Claim.objects.values_list("group_size", flat=True))


def test_a_group_has_one_size(real_cast: Cast) -> None:
    assert len(race_for_a_group(real_cast)) == 1
    assert Claim.objects.count() == 2


@pytest.mark.usefixtures("remove_lock")
def test_control_without_the_lock_a_group_has_several_sizes(real_cast: Cast) -> None:
    assert len(race_for_a_group(real_cast)) > 1


def test_groups_of_other_names_do_not_wait_for_each_other(real_cast: Cast) -> None:
    give_plenty(real_cast.acme)
    results = race([partial(ask, real_cast, group=f"ring-{n}", group_size=2) for n in range(RACERS)])
    assert outcomes(results) == {"Claim": RACERS}
