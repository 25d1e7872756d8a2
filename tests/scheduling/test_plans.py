"""Plans that preempt nobody: claims that may not use the capacity anyway, and failures of reclaim itself."""

from typing import Any

import pytest
from django.utils import timezone

from apps.quotas.models import User
from apps.quotas.principals import SYSTEM
from apps.quotas.services.member_limits import create_limit
from apps.scheduling.core import reclaim as rules
from apps.scheduling.models import Claim
from apps.scheduling.services.reclaiming import reclaim as reclaims
from apps.scheduling.services.reclaiming.reclaim import asking, plans
from tests.cast import GIB, Cast, ask
from tests.scheduling.test_preemption import build


def test_nobody_goes_for_a_claim_that_its_member_may_not_hold(cast: Cast) -> None:
    lab = build(cast)
    max_ = User.objects.get(username="max")
    create_limit(principal=SYSTEM, tenant=cast.acme, user=max_, resource="core_percent", hard=150)
    asked: dict[str, Any] = {"memory_mib": GIB, "when_over_quota": "wait", "core_request": 100}
    claims = [ask(cast, principal=cast.member, tenant=cast.acme, name=f"wants {n}", **asked) for n in range(2)]
    # As after a round that refused them for another reason.
    reasons = [{"code": "no-room", "gpus": 4, "detail": "4 GPUs lack free core"}]
    Claim.objects.filter(pk__in=[claim.pk for claim in claims]).update(state="queued", reasons=reasons)
    waiting = list(Claim.objects.filter(pk__in=[claim.pk for claim in claims]).order_by("pk"))
    assert [plan.claim.pk for plan in plans(cast.pool, waiting)] == [claims[0].pk]
    assert lab.states().count("!") == 0


def test_a_claim_over_which_reclaim_raises_keeps_nobody_else_from_what_is_theirs(
    cast: Cast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lab = build(cast)
    unlucky, other = lab.wants(90, priority=1), lab.wants(100)

    def raising(scene: Any, wanting: Any, *bounds: Any) -> Any:
        if wanting.claim == str(unlucky.uid):
            raise ZeroDivisionError("as if by a mistake in the core")
        return rules.reclaim(scene, wanting, *bounds)

    monkeypatch.setattr(reclaims, "reclaim", raising)
    assert [plan.claim for plan in plans(cast.pool, asking(cast.pool, now=timezone.now()))] == [other]
    assert str(unlucky.uid) in caplog.text
    assert "ZeroDivisionError" in caplog.text
