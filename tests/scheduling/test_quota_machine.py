"""Random sequences of all operations on quota, compared with a small model.

The model stores each claim's charge and each quota's settings. It sums used, borrowed and lent amounts each time, where
the product keeps totals; so it decides for every step whether it must be granted.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from django.db import transaction
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)

from apps.accounting.services.ledger_check import differences
from apps.quotas.models import CohortShare, ResourceQuota, Tenant
from apps.quotas.principals import SYSTEM
from apps.quotas.services import quotas, tenants
from apps.quotas.services.cohorts import CohortInUse
from apps.quotas.services.refusals import QuotaExceeded
from apps.quotas.services.tenants import InUse
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.lifecycle import WrongState, release_claim
from apps.scheduling.services.claims.resize import NoRoom, resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Cast, Machine, ask, assert_books_agree, give, make_cast

SLUGS = ("acme", "globex", "hooli")
COHORTS = st.sampled_from([None, "ml", "ml", "web"])
AMOUNTS = st.sampled_from([None, 0, 50, 100, 150, 300])
CORES = st.sampled_from([5, 20, 50, 100])
# (tenant, in pool `default` only)
Key = tuple[str, bool]


@dataclass
class Set:
    """An admin's settings of a quota of core."""

    hard: int | None
    borrowing_limit: int | None = None
    lending_limit: int | None = None

    @property
    def lendable(self) -> int:
        if self.hard is None:
            return 0
        return self.hard if self.lending_limit is None else min(self.hard, self.lending_limit)

    def taken(self, used: int) -> int:
        return 0 if self.hard is None else max(0, used - (self.hard - self.lendable))


@dataclass
class Model:
    """All state that decides about core."""

    cohorts: dict[str, str | None]
    quotas: dict[Key, Set]
    charged: dict[str, tuple[str, int]] = field(default_factory=dict)

    def used(self, slug: str) -> int:
        return sum(core for tenant, core in self.charged.values() if tenant == slug)

    def group(self, key: Key) -> list[Key]:
        """Return quotas that lend to one another."""
        cohort = self.cohorts[key[0]]
        if cohort is None:
            return []
        return [other for other in self.quotas if other[1] == key[1] and self.cohorts[other[0]] == cohort]

    def over(self, group: list[Key]) -> int:
        """Return how much more is used than available."""
        taken = sum(self.quotas[key].taken(self.used(key[0])) for key in group)
        return max(0, taken - sum(self.quotas[key].lendable for key in group))

    def most(self, key: Key) -> int | None:
        row = self.quotas[key]
        if row.hard is None or self.cohorts[key[0]] is None:
            return row.hard
        return None if row.borrowing_limit is None else row.hard + row.borrowing_limit

    def grants(self, slug: str, more: int) -> bool:
        """Return True if the tenant may be charged with so much more."""
        if (slug, False) not in self.quotas and (slug, True) not in self.quotas:
            return False
        return all(self._grants(key, more) for key in self.quotas if key[0] == slug)

    def _grants(self, key: Key, more: int) -> bool:
        row, used, most = self.quotas[key], self.used(key[0]), self.most(key)
        if most is not None and used + more > most:
            return False
        if row.taken(used + more) == row.taken(used):
            return True
        rest = [other for other in self.group(key) if other != key]
        taken = sum(self.quotas[other].taken(self.used(other[0])) for other in rest) + row.taken(used + more)
        return (not rest and self.cohorts[key[0]] is None) or taken <= sum(
            self.quotas[other].lendable for other in [*rest, key]
        )


class Sequence(RuleBasedStateMachine):
    """One platform, from empty; every step may be granted or refused, and the model knows which."""

    base: ClassVar[Cast]
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.undone = transaction.atomic()
        self.undone.__enter__()
        self.machine = Machine("gpu1", self.base.pool, gpus=6)
        tenants.create_tenant(principal=SYSTEM, slug="hooli", name="Hooli")
        for tenant in Tenant.objects.all():
            give(tenant, memory_mib=None)
        self.model = Model(dict.fromkeys(SLUGS), {})

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self.undone.__exit__(None, None, None)

    def row(self, key: Key) -> ResourceQuota:
        pool: dict[str, Any] = {"pool": self.base.pool} if key[1] else {"pool__isnull": True}
        return ResourceQuota.objects.get(tenant__slug=key[0], resource="core_percent", **pool)

    @rule(slug=st.sampled_from(SLUGS), pooled=st.booleans(), hard=AMOUNTS, borrow=AMOUNTS, lend=AMOUNTS)
    def set_quota(self, slug: str, pooled: bool, hard: int | None, borrow: int | None, lend: int | None) -> None:
        key, pool = (slug, pooled), self.base.pool if pooled else None
        limits: dict[str, Any] = {"borrowing_limit": borrow, "lending_limit": lend}
        before, new = self.model.quotas.get(key), Set(hard, **limits)
        over = self.model.over(self.model.group(key))
        self.model.quotas[key] = new
        if before is None:
            tenant = Tenant.objects.get(slug=slug)
            quotas.create_quota(
                principal=SYSTEM, tenant=tenant, pool=pool, resource="core_percent", hard=hard, **limits
            )
            return
        grows = self.model.over(self.model.group(key)) > over
        try:
            quotas.change_quota(principal=SYSTEM, quota=self.row(key), hard=hard, **limits)
            assert not (grows and lend != before.lending_limit)
        except CohortInUse:
            assert grows
            assert lend != before.lending_limit
            self.model.quotas[key] = before

    @rule(slug=st.sampled_from(SLUGS), pooled=st.booleans())
    def delete_quota(self, slug: str, pooled: bool) -> None:
        key = (slug, pooled)
        if key not in self.model.quotas:
            return
        group = self.model.group(key)
        over = self.model.over(group)
        grows = self.model.over([other for other in group if other != key]) > over
        try:
            quotas.delete_quota(principal=SYSTEM, quota=self.row(key))
        except InUse:
            assert self.model.used(slug)
        except CohortInUse:
            assert grows
        else:
            assert not grows
            assert not self.model.used(slug)
            del self.model.quotas[key]

    @rule(slug=st.sampled_from(SLUGS), cohort=COHORTS)
    def move(self, slug: str, cohort: str | None) -> None:
        old = self.model.cohorts[slug]
        allowed = cohort == old or self._may_move(slug, cohort)
        try:
            tenants.change_tenant(principal=SYSTEM, tenant=Tenant.objects.get(slug=slug), cohort=cohort)
            assert allowed
        except CohortInUse:
            assert not allowed
            self.model.cohorts[slug] = old
        else:
            self.model.cohorts[slug] = cohort

    def _may_move(self, slug: str, cohort: str | None) -> bool:
        """Return True if nobody is worse off; the model is then as after the move."""
        model, mine = self.model, [key for key in self.model.quotas if key[0] == slug]
        used = model.used(slug)
        hards = [hard for key in mine if (hard := model.quotas[key].hard) is not None]
        borrows = model.cohorts[slug] is not None and any(used > hard for hard in hards)
        old = {key: [other for other in model.group(key) if other != key] for key in mine}
        before = {key: (model.over([*old[key], key]) if model.cohorts[slug] else 0) for key in mine}
        model.cohorts[slug] = cohort
        left = all(model.over(old[key]) <= before[key] for key in mine)
        joined = all(
            model.over(model.group(key)) <= model.over([other for other in model.group(key) if other != key])
            for key in mine
        )
        return not borrows and left and joined

    @rule(target=claims, slug=st.sampled_from(SLUGS), core=CORES, count=st.integers(1, 3), wait=st.booleans())
    def create(self, slug: str, core: int, count: int, wait: bool) -> Any:
        granted = self.model.grants(slug, core * count)
        facts: dict[str, Any] = {"core_request": core, "memory_mib": 1, "gpu_count": count}
        tenant = Tenant.objects.get(slug=slug)
        try:
            claim = ask(self.base, tenant=tenant, when_over_quota="wait" if wait else "refuse", **facts)
        except QuotaExceeded:
            assert not granted
            assert not wait
            return None
        assert granted == bool(claim.charged_core_percent)
        self.model.charged[str(claim.uid)] = (slug, core * count if granted else 0)
        return str(claim.uid)

    @rule(uid=claims, core=CORES)
    def resize(self, uid: str | None, core: int) -> None:
        if uid is None:
            return
        slug, charged = self.model.charged[uid]
        claim = Claim.objects.get(uid=uid)
        wanted = core * claim.gpu_count if charged else 0
        more = max(0, wanted - charged)
        try:
            claim = resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(core_request=core, core_limit=100))
        except (WrongState, NoRoom):
            return
        except QuotaExceeded:
            assert more
            assert not self.model.grants(slug, more)
            return
        assert not more or self.model.grants(slug, more)
        # Capacity of a placed claim is not free before the node has confirmed.
        self.model.charged[uid] = (slug, wanted if claim.waiting else charged + more)

    @rule(uid=consumes(claims))
    def release(self, uid: str | None) -> None:
        if uid is None:
            return
        claim = release_claim(principal=SYSTEM, claim=Claim.objects.get(uid=uid))
        if claim.state == "released":
            self.model.charged[uid] = (self.model.charged[uid][0], 0)

    @rule()
    def observe(self) -> None:
        self.machine.obey()
        for uid, (slug, charged) in self.model.charged.items():
            claim = Claim.objects.get(uid=uid)
            if not claim.waiting and charged:
                held = 0 if claim.state == "released" else claim.core_request * claim.gpu_count
                self.model.charged[uid] = (slug, held)

    @rule()
    def run_a_round(self) -> None:
        run_round(self.base.pool)
        for uid, claim in self.waited():
            if claim.charged_core_percent:  # in the order of the queue, so the model follows claim by claim
                slug, want = claim.tenant.slug, claim.core_request * claim.gpu_count
                assert self.model.grants(slug, want)
                self.model.charged[uid] = (slug, want)

    def waited(self) -> Iterator[tuple[str, Claim]]:
        for claim in Claim.objects.select_related("tenant").order_by("-priority", "pk"):
            if self.model.charged[str(claim.uid)][1] == 0 and claim.state != "released":
                yield str(claim.uid), claim

    @invariant()
    def the_model_and_the_books_agree(self) -> None:
        charged = {str(uid): core for uid, core in Claim.objects.values_list("uid", "charged_core_percent")}
        assert charged == {uid: core for uid, (_, core) in self.model.charged.items()}
        for key in self.model.quotas:
            row, used, most = self.row(key), self.model.used(key[0]), self.model.most(key)
            hard = self.model.quotas[key].hard
            assert (row.used, row.borrowed) == (used, max(0, used - (used if hard is None else hard)))
            assert row.excess == (0 if most is None else max(0, used - most))
        for share in CohortShare.objects.all():
            assert share.excess == max(0, share.taken - share.lendable)
        assert_books_agree()
        assert not differences()


def run(cast: Cast, *, sequences: int, steps: int, phases: Collection[Phase] = tuple(Phase)) -> None:
    Sequence.base = cast
    run_state_machine_as_test(
        Sequence,
        settings=settings(
            max_examples=sequences,
            stateful_step_count=steps,
            deadline=None,
            phases=phases,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


@pytest.mark.slow
def test_random_sequences_keep_every_book(db: None) -> None:
    run(make_cast(), sequences=4, steps=25)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_thousands_of_random_sequences_keep_every_book(db: None) -> None:
    run(make_cast(), sequences=2000, steps=30)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("broken", ["give_back", "recount"])
def test_control_the_machine_finds_a_share_that_is_not_kept(
    db: None, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setattr(f"apps.quotas.services.cohorts.{broken}", lambda *args, **kwargs: None)
    with pytest.raises(AssertionError):  # at the first one: a shorter sequence has no more information
        run(make_cast(), sequences=200, steps=30, phases=[Phase.generate])
