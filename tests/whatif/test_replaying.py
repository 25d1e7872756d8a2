"""Replays: a small history with an answer worked out by hand, and rules that every history obeys."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.scheduling.core.fair_share import Past
from apps.scheduling.core.queue import QueueEntry
from apps.scheduling.core.values import GpuState, NodeState, Request
from apps.whatif.replaying import Replay
from apps.whatif.values import KINDS, ORDERS, SHARINGS, Figures, Kind, PastClaim, Resize, Site, Size, Waits
from tests.matrix import examples

A100 = "NVIDIA A100-SXM4-40GB"
MIB = 40960


def site(gpus: int = 1, *, model: str = A100, **facts: Any) -> Site:
    """Return a pool of one node, over a thousand seconds."""
    devices = tuple(GpuState(f"g{n}", "n1", n, model, MIB, 100, MIB) for n in range(gpus))
    values: dict[str, Any] = {"begin": 0.0, "end": 1000.0, "policy": "binpack", **facts}
    return Site(devices, (NodeState("n1"),), **values)


def past(number: int, at: float, run: float | None, *, tenant: str = "a", **facts: Any) -> PastClaim:
    """Return a claim for half of a GPU unless said otherwise."""
    asked: dict[str, Any] = {"gpu_count": 1, "core_request": 50, "memory_mib": 10000}
    request = Request(**{name: facts.pop(name, value) for name, value in asked.items()})
    of_entry = {
        name: facts.pop(name) for name in ("priority", "time_limit_seconds", "group", "group_size") if name in facts
    }
    return PastClaim(QueueEntry(f"c{number}", tenant, request, number, **of_entry), at, run, **facts)


def replay(pool: Site, claims: list[PastClaim], kind: Kind = "turns") -> Figures:
    """Return the figures of one kind, after two runs that must agree."""
    first, second = (Replay(pool, claims, kind, backend="python").run() for _ in range(2))
    assert first == second
    return first


# A GPU of 100 % and 40,960 MiB for 1,000 s. Each claim asks for 50 % and 10,000 MiB.
THREE = [past(1, 0, 400), past(2, 100, 400, tenant="b"), past(3, 200, 200)]


def test_by_turns_two_halves_run_and_the_third_waits() -> None:
    """c1 0–400, c2 100–500, c3 400–600: 1,000 s of 50 % are half of the GPU."""
    seen = replay(site(), THREE)
    assert (seen.claims, seen.accepted, seen.waiting, seen.left, seen.unfit) == (3, 3, 0, 0, {})
    assert (seen.wait_mean_seconds, seen.wait_p95_seconds) == (66.7, 200.0)
    assert (seen.core_percent, seen.memory_percent) == (50.0, 24.41)
    assert (seen.rounding_core_percent, seen.rounding_memory_percent) == (0.0, 0.0)
    # From 200 to 400 c3 waits, and all core is taken; 20,960 MiB are free: 4,192,000 of 40,960,000.
    assert (seen.stranded_core_percent, seen.stranded_memory_percent) == (0.0, 10.23)
    # Both tenants are there from 100 to 500.
    assert seen.mixed_core_percent == 40.0


def test_by_mig_each_half_needs_the_only_instance_of_four_slices() -> None:
    """4g.20gb has 57 % and 20,096 MiB: c1 0–400, c2 400–800, c3 800–1,000."""
    seen = replay(site(), THREE, "mig")
    assert (seen.accepted, seen.wait_mean_seconds, seen.wait_p95_seconds) == (3, 300.0, 600.0)
    assert (seen.core_percent, seen.rounding_core_percent) == (57.0, 7.0)
    assert (seen.memory_percent, seen.rounding_memory_percent) == (49.06, 24.65)
    assert seen.stranded_core_percent == 30.1, "43 % for the 700 s in which a claim waits"


def test_with_one_tenant_to_a_gpu_the_other_waits_for_it() -> None:
    """c3 is of c1's tenant and joins it: c1 0–400, c3 200–400, c2 400–800."""
    seen = replay(site(), THREE, "mps-per-tenant")
    assert (seen.accepted, seen.wait_mean_seconds, seen.mixed_core_percent) == (3, 100.0, 0.0)
    assert replay(site(), THREE, "mps").mixed_core_percent == 40.0
    assert replay(site(2), THREE, "turns").mixed_core_percent == 15.0, "c1 and c2 fill g0 from 100 to 400"
    assert replay(site(2), THREE, "mps").mixed_core_percent == 0.0, "with a second GPU, tenants stay apart"


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        (past(1, 0, 10, gpu_count=2), "several-gpus"),
        (past(1, 0, 10, memory_mib=40900), "profile-too-small"),
        (past(1, 0, 10, group="g"), "group"),
        (past(1, 0, 10, is_of_pod=True), "pod"),
        (past(1, 0, 10, is_reserved=True), "reservation"),
    ],
)
def test_what_does_not_fit_mig_is_counted_by_reason(claim: PastClaim, reason: str) -> None:
    seen = replay(site(2), [claim], "mig")
    assert (seen.claims, seen.accepted, seen.unfit) == (1, 0, {reason: 1})
    assert replay(site(2), [claim]).accepted == 1, "turns serve it"


def test_other_reasons_for_which_a_kind_cannot_serve_a_claim() -> None:
    assert replay(site(model="T4"), THREE, "mig").unfit == {"no-mig-gpu": 3}
    assert replay(site(), [past(1, 0, 10, gpu_count=2)]).unfit == {"impossible": 1}
    hard = past(1, 0, 10)
    hard = replace(hard, entry=replace(hard.entry, request=replace(hard.entry.request, profile="1g.5gb")))
    assert replay(site(), [hard]).unfit == {"hard-isolation": 1}
    assert replay(site(), [hard], "mig").accepted == 1


def test_live_resizes_by_kind() -> None:
    """A raise from 20 to 60 % has room beside 30 %, one to 90 % does not; an instance keeps its size."""
    grows = past(1, 0, 1000, core_request=20, resizes=(Resize(100, Size(60, 10000)), Resize(200, Size(90, 10000))))
    claims = [grows, past(2, 0, 1000, core_request=30)]
    found = {kind: replay(site(), claims, kind) for kind in SHARINGS}
    assert {kind: one.resizes_refused for kind, one in found.items()} == {
        "turns": 1, "mps": 1, "mps-per-tenant": 1, "mig": 2,
    }  # fmt: skip
    assert (found["turns"].restarts, found["mps"].restarts) == (0, 1)
    assert found["turns"].core_percent == 86.0, "20 % for 100 s, 60 for 900, and 30 for 1,000"
    suspended = [past(1, 0, 10, suspensions=3)]
    assert [replay(site(), suspended, kind).suspensions_refused for kind in KINDS] == [0, 3, 3, 3, 0, 0]


def test_claims_that_gave_up_and_that_still_wait() -> None:
    """c2 gave up at 300; c3 still waits at the end; c4 would have run for its time limit."""
    claims = [
        past(1, 0, None, core_request=80), past(2, 100, None, never_ran=True, left_at=300.0), past(3, 600, 100),
        past(4, 700, None, never_ran=True, left_at=900.0, core_request=20, time_limit_seconds=50),
    ]  # fmt: skip
    seen = replay(site(), claims)
    assert (seen.accepted, seen.left, seen.waiting) == (2, 1, 1)
    assert seen.wait_mean_seconds == 150.0, "0, 200, 400 and 0"
    assert seen.core_percent == 81.0, "80 % all the time, and 20 % for 50 s"


def test_what_ran_before_goes_first_and_does_not_count_as_waiting() -> None:
    claims = [past(1, -50, 10, priority=9), past(2, -100, 500, ran_before=True, core_request=100)]
    seen = replay(site(), claims)
    assert (seen.accepted, seen.wait_mean_seconds) == (2, 550.0)


def test_a_group_starts_together() -> None:
    claims = [past(n, 100.0 * n, 300, core_request=100, group="g", group_size=2) for n in (1, 2)]
    seen = replay(site(2), [past(0, 0, 250, core_request=100), *claims])
    assert (seen.accepted, seen.wait_mean_seconds) == (3, round((150 + 50) / 3, 1))


histories = st.lists(
    st.builds(
        past,
        st.just(0),
        st.integers(0, 900),
        st.integers(1, 300),
        tenant=st.sampled_from("abc"),
        gpu_count=st.sampled_from((1, 1, 1, 2)),
        core_request=st.sampled_from((10, 25, 30, 50, 70, 100)),
        memory_mib=st.sampled_from((1000, 4000, 12000, 20000, 40000)),
        priority=st.sampled_from((0, 0, 5)),
        time_limit_seconds=st.sampled_from((None, 300)),
    ),
    max_size=25,
)


def numbered(claims: list[PastClaim]) -> list[PastClaim]:
    ordered = sorted(claims, key=lambda claim: claim.arrives_at)
    return [
        replace(claim, entry=replace(claim.entry, id=f"c{number}", since=number))
        for number, claim in enumerate(ordered)
    ]


@given(histories, st.integers(1, 3), st.sampled_from(KINDS), st.sampled_from(["gpucloud", "binpack", "spread"]))
@settings(max_examples=examples(60), deadline=None)
def test_no_kind_gives_more_than_there_is_and_counts_every_claim_once(
    claims: list[PastClaim], gpus: int, kind: Kind, policy: str
) -> None:
    seen = replay(site(gpus, policy=policy), numbered(claims), kind)
    assert seen.claims == len(claims)
    assert 0 <= seen.rounding_core_percent <= seen.core_percent <= 100
    assert 0 <= seen.rounding_memory_percent <= seen.memory_percent <= 100
    assert seen.core_percent + seen.stranded_core_percent <= 100.02
    assert seen.mixed_core_percent <= seen.core_percent


@given(histories, st.integers(1, 3))
@settings(max_examples=examples(40), deadline=None)
def test_what_ran_by_turns_runs_again_at_the_same_time(claims: list[PastClaim], gpus: int) -> None:
    """A history whose claims arrive when the first replay started them has room for each at once, on more no less."""
    pool = replace(site(gpus, policy="binpack"), end=100_000.0)
    first = Replay(pool, numbered(claims), "turns", backend="python")
    figures = first.run()
    assert figures.accepted + figures.unfit.get("impossible", 0) == len(claims), "the period is long enough for all"
    ran = [claim for claim in first.claims if claim.entry.id in first.accepted]
    again = replay(pool, ran)
    assert (again.accepted, again.waiting, again.unfit) == (len(ran), 0, {})
    assert again.core_percent == figures.core_percent
    if gpus < 3:
        assert replay(replace(site(gpus + 1), end=100_000.0), ran).accepted == len(ran)


# Whole GPUs for 100 s: five of a that came first, and five of b.
WHOLE = [past(n, 0, 100, tenant="a", core_request=100) for n in range(5)] + [
    past(n, 50, 100, tenant="b", core_request=100) for n in range(5, 10)
]


def test_by_current_fair_share_the_older_claims_of_one_tenant_go_first_each_time() -> None:
    """Nobody holds anything at the moment that decides: a 0–500, b 500–1,000."""
    seen = replay(site(), WHOLE, "fair-share-current")
    assert seen.waits == {"a": Waits(5, 200.0, 400.0), "b": Waits(5, 650.0, 850.0)}


def test_by_decayed_fair_share_they_take_turns() -> None:
    """a 0–100, b 100–200, a 200–300, …"""
    seen = replay(site(half_life_seconds=3600), WHOLE, "fair-share-decayed")
    assert seen.waits == {"a": Waits(5, 400.0, 800.0), "b": Waits(5, 450.0, 850.0)}


def test_what_tenants_held_before_the_period_counts() -> None:
    """The younger of two claims of one moment goes first: a held half a GPU before."""
    both = [past(1, 0, 100, tenant="a", core_request=100), past(2, 0, 100, tenant="b", core_request=100)]
    waits = {name: replay(site(past={"a": Past(50.0)}), both, name).waits for name in ORDERS}
    assert waits["fair-share-current"]["a"].mean_seconds == 0
    assert (waits["fair-share-decayed"]["b"].mean_seconds, waits["fair-share-decayed"]["a"].mean_seconds) == (0, 100)


def test_other_kinds_have_the_pools_own_order() -> None:
    for number, order in enumerate(ORDERS):
        pool = site(half_life_seconds=3600, remembers=bool(number))
        assert replay(pool, WHOLE, "turns") == replace(replay(pool, WHOLE, order), kind="turns")
