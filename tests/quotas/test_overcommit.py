"""Overcommit: the ratio of a pool's quotas to its GPUs."""

import threading
import time
from typing import Any

import pytest

from apps.nodes.models import Gpu
from apps.quotas.models import Pool, ResourceQuota
from apps.quotas.principals import SYSTEM
from apps.quotas.services import quotas, tenants
from apps.quotas.services.overcommit import Overcommitted
from apps.scheduling.services.claims.sharing import change_pool
from tests.cast import GIB, Cast, Machine, give
from tests.racing import outcomes, race


@pytest.fixture(autouse=True)
def machine(request: pytest.FixtureRequest) -> Machine:
    """Create four GPUs: 400 of core, 96 GiB."""
    name = "real_cast" if "real_cast" in request.fixturenames else "cast"
    return Machine("gpu1", request.getfixturevalue(name).pool)


def bound(cast: Cast, percent: int | None, what: str = "core") -> None:
    assert cast.olga.patch("pools/default/", {f"{what}_overcommit_percent": percent}).status == 200


def change(quota: ResourceQuota, hard: int | None) -> None:
    quotas.change_quota(principal=SYSTEM, quota=quota, hard=hard)


@pytest.mark.parametrize(("percent", "second"), [(100, 100), (150, 300), (50, 0)])
def test_quotas_together_promise_no_more_than_the_ratio(cast: Cast, percent: int, second: int) -> None:
    first = min(300, 4 * percent)
    bound(cast, percent)
    give(cast.acme, core_percent=first if second else 200)
    with pytest.raises(Overcommitted):
        give(cast.globex, core_percent=second + 1)
    give(cast.globex, core_percent=second)


def test_the_refusal_says_what_there_is_and_what_to_do(cast: Cast) -> None:
    bound(cast, 100)
    refused = cast.olga.post("quotas/", {"tenant": "acme", "resource": "core_percent", "hard": 401})
    assert (refused.status, refused.code) == (409, "overcommitted")
    wanted = {"pool": "default", "resource": "core_percent", "capacity": 400, "promised": 401}
    assert {name: refused.body[name] for name in wanted} == wanted
    assert refused.body["overcommit_percent"] == 100
    assert "raise core_overcommit_percent" in refused.body["detail"]


def test_memory_has_a_ratio_of_its_own(cast: Cast) -> None:
    bound(cast, 200, "memory")
    give(cast.acme, core_percent=10_000, memory_mib=192 * GIB)
    with pytest.raises(Overcommitted):
        give(cast.globex, memory_mib=1)


def test_a_tenant_is_promised_the_least_of_its_quotas(cast: Cast) -> None:
    inside = give(cast.acme, pool=cast.pool, core_percent=100)["core_percent"]
    bound(cast, 100)
    give(cast.acme, core_percent=5000)
    give(cast.globex, core_percent=300)
    with pytest.raises(Overcommitted):
        change(inside, 101)
    with pytest.raises(Overcommitted):
        quotas.delete_quota(principal=SYSTEM, quota=inside)


def test_no_limit_is_more_than_any_machine_has(cast: Cast) -> None:
    bound(cast, 10_000)
    with pytest.raises(Overcommitted) as refused:
        give(cast.acme, core_percent=None)
    assert refused.value.facts["promised"] is None


def test_another_pools_quotas_are_promised_there(cast: Cast) -> None:
    other = tenants.create_pool(principal=SYSTEM, name="shared")
    bound(cast, 100)
    give(cast.acme, pool=other, core_percent=5000)
    # The bound counts this pool's quotas and no others: one more is refused, all of it is given.
    with pytest.raises(Overcommitted) as refused:
        give(cast.globex, pool=cast.pool, core_percent=401)
    assert refused.value.facts["promised"] == 401
    given = give(cast.globex, pool=cast.pool, core_percent=400)["core_percent"]
    assert (given.pool, given.hard) == (cast.pool, 400)


def test_what_was_promised_before_gpus_went_away_stays_and_may_fall(cast: Cast) -> None:
    bound(cast, 100)
    quota = give(cast.acme, core_percent=400)["core_percent"]
    Gpu.objects.update(present=False)
    change(quota, 300)
    with pytest.raises(Overcommitted):
        change(quota, 301)


def test_a_ratio_below_what_is_promised_is_refused_and_none_is_no_check(cast: Cast) -> None:
    give(cast.acme, core_percent=500)
    refused = cast.olga.patch("pools/default/", {"core_overcommit_percent": 124})
    assert (refused.code, refused.body["promised"]) == ("overcommitted", 500)
    bound(cast, 125)
    bound(cast, None)
    give(cast.globex, core_percent=None)


@pytest.mark.django_db(transaction=True)
def test_a_ratio_set_while_a_quota_is_made_sees_it(real_cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    note, made = quotas._note, threading.Event()

    def note_and_wait(*args: Any, **facts: Any) -> None:
        note(*args, **facts)
        made.set()
        time.sleep(0.2)  # before its commit, so that the ratio is set, if it may be

    def set_ratio() -> Pool:
        made.wait(timeout=30)
        return change_pool(principal=SYSTEM, pool=real_cast.pool, core_overcommit_percent=100)

    monkeypatch.setattr(quotas, "_note", note_and_wait)
    results = race([lambda: give(real_cast.acme, core_percent=401), set_ratio])
    assert outcomes(results) == {"dict": 1, "Overcommitted": 1}
