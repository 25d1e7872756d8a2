"""Races of resumptions for GPUs that are not the claims' own, on PostgreSQL; the dangerous one beside a control."""

from collections.abc import Mapping
from functools import partial

import pytest
from django.db.models import F, QuerySet

from apps.nodes.models import Gpu
from apps.nodes.services import capacity
from apps.quotas.principals import SYSTEM
from apps.quotas.services.tenants import create_tenant
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.cycles.commits import Outcome, Pick, commit
from apps.scheduling.services.cycles.rounds import run_round
from apps.suspension.services import resume_claim, suspend_claim
from tests.cast import GIB, MIB_BYTES, Cast, Machine, assert_books_agree, give_plenty, placed
from tests.racing import race

pytestmark = pytest.mark.django_db(transaction=True)
# Claims of a whole GPU that were suspended on GPU 0, and the GPUs beside it.
RACERS, OTHERS = 12, 3


def suspend_in_turn(cast: Cast) -> tuple[Machine, list[Claim]]:
    """Suspend claims of a whole GPU on GPU 0, one after the other, and let all of them wait to resume."""
    machine = Machine("gpu1", cast.pool, host_memory_mib=RACERS * GIB).stay_online()
    Gpu.objects.exclude(index=0).update(cordoned=True)
    claims = []
    for number in range(RACERS):
        # Claims of one tenant would wait for one another's charge.
        tenant = create_tenant(principal=SYSTEM, slug=f"t{number}", name=f"T{number}")
        give_plenty(tenant)
        claim, _ = placed(cast, machine, tenant=tenant, core_request=100, memory_mib=GIB)
        suspend_claim(principal=SYSTEM, claim=claim)
        machine.obey(memory_bytes=GIB * MIB_BYTES)
        claims.append(claim)
    Gpu.objects.update(cordoned=False)
    for claim in claims:
        resume_claim(principal=SYSTEM, claim=claim)
        claim.refresh_from_db()
    return machine, claims


def grant_all_elsewhere(cast: Cast) -> list[int]:
    """Grant all of them GPUs beside their own at once; return the core that claims hold on each of those."""
    machine, claims = suspend_in_turn(cast)
    picks = [Pick(claim, (machine.gpu(1 + number % OTHERS).pk,)) for number, claim in enumerate(claims)]
    found = race([partial(commit, [pick], fence=lambda: None) for pick in picks])
    assert not [one for one in found if not isinstance(one, Outcome)], found
    rows = Assignment.objects.live().exclude(gpu__index=0)
    held = dict.fromkeys(range(1, OTHERS + 1), 0)
    for index, core in rows.values_list("gpu__index", "held_core"):
        held[index] += core
    return list(held.values())


def test_of_resumptions_at_once_each_gpu_takes_one(real_cast: Cast) -> None:
    assert grant_all_elsewhere(real_cast) == [100] * OTHERS
    assert_books_agree()


def naive_take(takes: Mapping[int, tuple[int, int]]) -> bool:
    """Write what was read: unlike `capacity`. The row's constraints still hold."""
    for key, (core, memory_mib) in takes.items():
        Gpu.objects.filter(pk=key).update(core_used=core, memory_used_mib=F("memory_used_mib") + memory_mib)
    return True


def test_control_the_race_is_real_without_the_locks(real_cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuerySet, "select_for_update", lambda rows, *_args, **_options: rows)
    monkeypatch.setattr(capacity, "take_many", naive_take)
    assert max(grant_all_elsewhere(real_cast)) > 100


def test_rounds_at_once_resume_as_many_as_fit(real_cast: Cast) -> None:
    machine, claims = suspend_in_turn(real_cast)
    race([partial(run_round, real_cast.pool)] * 8)
    machine.obey()
    granted = Assignment.objects.live().filter(held_core=100).order_by("gpu__index")
    assert list(granted.values_list("gpu__index", flat=True)) == list(range(OTHERS + 1))
    assert Claim.objects.filter(state="active").count() == OTHERS + 1
    assert len(claims) == RACERS
    assert_books_agree()
