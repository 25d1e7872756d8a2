"""Sharing of one GPU: the invariants of the formula, and the arbiter's C compared with the Python specification."""

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.matrix import examples
from tests.scheduling.sharing_oracle import WHOLE, Policy, Terms, share, terms

LIBRARY = Path(__file__).resolve().parents[2] / "libvcuda" / "build" / "tests" / "libshare.so"
hundredths = st.integers(0, WHOLE)


@st.composite
def claim_terms(draw: st.DrawFn) -> Terms:
    limit = draw(hundredths)
    return Terms(
        guarantee=draw(st.integers(0, limit)),
        limit=limit,
        weight=draw(st.one_of(st.integers(1, 10), st.integers(1, 2**32 - 1))),
        demand=draw(st.one_of(st.just(WHOLE), hundredths)),
    )


def mixed_tiers(claims: Sequence[Terms]) -> list[Terms]:
    return [replace(claim, tier=i % 2) for i, claim in enumerate(claims)]


groups = st.lists(claim_terms(), min_size=1, max_size=8)
tiered = st.one_of(groups, groups.map(mixed_tiers))


class _Terms(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("guarantee", "limit", "demand", "weight", "tier")]


class _Limit(ctypes.Structure):
    _fields_ = [
        ("index", ctypes.c_uint32),
        ("state", ctypes.c_uint32),
        ("gpu_uuid", ctypes.c_uint8 * 16),
        ("assignment_uid", ctypes.c_uint8 * 16),
        ("generation", ctypes.c_uint64),
        ("memory_bytes", ctypes.c_uint64),
        *[
            (name, ctypes.c_uint32)
            for name in ("core_request", "core_limit", "policy", "weight", "ceiling", "parts", "flags", "reserved")
        ],
    ]


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    assert LIBRARY.exists(), "libvcuda is not built: make -C libvcuda"
    return ctypes.CDLL(str(LIBRARY))


@pytest.mark.slow
@given(claims=tiered, ceiling=hundredths)
@settings(max_examples=examples(500))
def test_the_arbiter_computes_the_same_shares(library: ctypes.CDLL, claims: list[Terms], ceiling: int) -> None:
    rows = (_Terms * len(claims))(*[_Terms(c.guarantee, c.limit, c.demand, c.weight, c.tier) for c in claims])
    shares = (ctypes.c_uint32 * len(claims))()
    library.share_fill(rows, len(claims), ceiling, shares)
    assert list(shares) == share(claims, ceiling)


limits = st.fixed_dictionaries(
    {
        "core_request": st.integers(0, 100),
        "core_limit": st.integers(0, 100),
        "weight": st.integers(0, 1000),
        "parts": st.integers(0, 20_000),
    }
)


@given(policy=st.sampled_from(Policy), numbers=limits, best_effort=st.booleans())
def test_the_arbiter_reads_the_same_terms_from_the_limits(
    library: ctypes.CDLL, policy: Policy, numbers: dict[str, int], best_effort: bool
) -> None:
    limit = _Limit(policy=policy, flags=int(best_effort), **numbers)
    row = _Terms()
    library.share_terms_of(ctypes.byref(limit), ctypes.byref(row))
    assert Terms(row.guarantee, row.limit, row.weight, row.tier, row.demand) == terms(
        policy,
        core_request=numbers["core_request"],
        core_limit=numbers["core_limit"],
        weight=numbers["weight"],
        parts=numbers["parts"],
        best_effort=best_effort,
    )


@given(claims=tiered, ceiling=hundredths)
def test_the_sum_never_passes_the_ceiling_and_nobody_gets_more_than_its_limit(
    claims: list[Terms], ceiling: int
) -> None:
    shares = share(claims, ceiling)
    assert sum(shares) <= ceiling
    assert all(0 <= got <= claim.high for got, claim in zip(shares, claims, strict=True))


@given(claims=tiered, ceiling=hundredths)
def test_nothing_stays_idle_while_somebody_wants_it(claims: list[Terms], ceiling: int) -> None:
    assert sum(share(claims, ceiling)) > min(ceiling, sum(claim.high for claim in claims)) - max(len(claims), 1)


@given(claims=groups, ceiling=hundredths)
def test_nobody_is_below_its_guarantee_while_demanding_it(claims: list[Terms], ceiling: int) -> None:
    assume(sum(claim.low for claim in claims) <= ceiling)
    assert all(got >= claim.low for got, claim in zip(share(claims, ceiling), claims, strict=True))


@given(claims=groups, newcomer=claim_terms(), ceiling=hundredths)
def test_a_newcomer_pushes_nobody_below_its_guarantee(claims: list[Terms], newcomer: Terms, ceiling: int) -> None:
    assume(sum(claim.guarantee for claim in [*claims, newcomer]) <= ceiling)
    assert all(got >= claim.low for got, claim in zip(share([*claims, newcomer], ceiling), claims, strict=False))


@given(claims=tiered, ceiling=hundredths, more=hundredths, data=st.data())
def test_more_demand_never_lowers_ones_own_share(
    claims: list[Terms], ceiling: int, more: int, data: st.DataObject
) -> None:
    i = data.draw(st.integers(0, len(claims) - 1))
    greedy = [*claims]
    greedy[i] = replace(claims[i], demand=min(claims[i].demand + more, WHOLE))
    assert share(greedy, ceiling)[i] >= share(claims, ceiling)[i]


@given(claims=groups, ceiling=hundredths)
def test_beyond_the_guarantees_the_weights_decide(claims: list[Terms], ceiling: int) -> None:
    assume(sum(claim.low for claim in claims) <= ceiling)
    beyond = [got - claim.low for got, claim in zip(share(claims, ceiling), claims, strict=True)]
    for a, claim in zip(beyond, claims, strict=True):
        for b, other in zip(beyond, claims, strict=True):
            if b < other.high - other.low:
                # A claim that is not full has at least its share by weight against any other's, less the rounding.
                assert (b + 1) * claim.weight >= a * other.weight


@given(claims=tiered, ceiling=hundredths, data=st.data())
def test_the_order_does_not_matter(claims: list[Terms], ceiling: int, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(claims))))
    shares = share(claims, ceiling)
    assert share([claims[i] for i in order], ceiling) == [shares[i] for i in order]


@given(claims=groups, ceiling=hundredths)
def test_best_effort_claims_change_nothing_for_the_others(claims: list[Terms], ceiling: int) -> None:
    best_effort = [Terms(0, WHOLE, 9, tier=1)] * 3
    assert share([*claims, *best_effort], ceiling)[: len(claims)] == share(claims, ceiling)


def test_the_policies_as_they_are_known() -> None:
    def of(policy: Policy, *, ceiling: int = WHOLE, weight: int = 1, best_effort: bool = False) -> list[int]:
        first = terms(policy, core_request=20, core_limit=80, parts=4)
        other = terms(policy, core_request=40, core_limit=100, weight=weight, parts=4, best_effort=best_effort)
        return share([first, other], ceiling)

    assert of(Policy.BURST) == [4000, 6000]
    assert of(Policy.BURST, ceiling=9000) == [3500, 5500]
    assert of(Policy.FIXED) == [2000, 4000]
    assert of(Policy.FAIR) == [5000, 5000]
    assert of(Policy.WEIGHTED, weight=3) == [2500, 7500]
    assert of(Policy.AVERAGE) == [2500, 2500]
    assert of(Policy.PREEMPT, best_effort=True) == [8000, 2000]
    assert share([terms(Policy.FAIR, core_request=0, core_limit=0)]) == [0]
