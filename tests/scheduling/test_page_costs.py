"""The cost of lists: queries that do not grow with the rows, and little work for each row."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework import serializers

from apps.scheduling.api.claims import ClaimFilter
from apps.scheduling.models import Claim, ClaimState
from apps.scheduling.services.cycles.rounds import run_round
from gpucloud.api import serializers as strict
from gpucloud.api.filters import Constant
from tests.cast import Cast, Machine, ask, give_plenty

FEW, MANY = 2, 22
LISTS = [
    "claims/", "claims/?state=active", "claims/?live=true", "claims/?state=queued", "claims/?tenant=acme",
    "assignments/", "assignments/?state=in_force", "gpus/", "quotas/", "audit/", "tokens/", "jobs/", "reservations/",
]  # fmt: skip
# Calls of Python functions for one more row; the framework's own way takes 1,600 for a claim.
MOST_CALLS = {"claims/": 260, "claims/?state=active": 240, "assignments/": 50}


def add_claims(cast: Cast, machine: Machine, count: int) -> None:
    """Add active claims, and as many that wait."""
    for number in range(count):
        ask(cast, name=f"small-{number}", core_request=1, core_limit=2, memory_mib=100)
        ask(cast, name=f"large-{number}", gpu_count=4, core_request=100)
    run_round(cast.pool)
    machine.obey()


@contextmanager
def counted_calls() -> Iterator[Callable[[], int]]:
    """Count the Python functions that this thread enters."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield lambda: calls
    finally:
        sys.setprofile(before)


def test_a_list_asks_as_many_queries_for_twenty_rows_as_for_two(cast: Cast) -> None:
    give_plenty(cast.acme)
    machine = Machine("gpu1", cast.pool)
    add_claims(cast, machine, FEW)
    few = {path: queries_of(cast, path) for path in LISTS}
    add_claims(cast, machine, MANY - FEW)
    many = {path: queries_of(cast, path) for path in LISTS}
    assert {path: (few[path], many[path]) for path in LISTS if few[path] != many[path]} == {}


def test_one_more_row_of_a_list_costs_few_calls(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a control: the framework's own representation is above the bounds."""
    give_plenty(cast.acme)
    machine = Machine("gpu1", cast.pool)
    add_claims(cast, machine, MANY)
    slopes = {path: calls_per_row(cast, path) for path in MOST_CALLS}
    assert {path: calls for path, calls in slopes.items() if calls > MOST_CALLS[path]} == {}
    monkeypatch.setattr(strict, "_compiled", lambda kind: serializers.Serializer.to_representation)
    assert {path for path, most in MOST_CALLS.items() if calls_per_row(cast, path) > most} == set(MOST_CALLS)


def test_a_state_is_a_constant_of_the_statement_and_one_of_the_models() -> None:
    """A parameter would keep a generic plan from the indexes of live rows."""
    filtered = ClaimFilter({"state": "active"}, queryset=Claim.objects.all()).qs
    text, values = filtered.query.sql_with_params()
    assert "'active'" in text
    assert values == ()
    for wrong in ("elsewhere", "active' OR true --"):
        with pytest.raises(ValueError, match="is not one of"):
            Constant(wrong, ClaimState.values)


def queries_of(cast: Cast, path: str) -> int:
    cast.olga.get(path)  # a token's first use is written down, and a query may be compiled
    with CaptureQueriesContext(connection) as asked:
        answer = cast.olga.get(path)
    assert answer.status == 200, answer.body
    return len(asked)


def calls_per_row(cast: Cast, path: str) -> float:
    few, many = (calls_of(cast, f"{path}{'&' if '?' in path else '?'}limit={limit}") for limit in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def calls_of(cast: Cast, path: str) -> int:
    cast.olga.get(path)
    with counted_calls() as calls:
        answer = cast.olga.get(path)
        found = calls()
    assert answer.status == 200, answer.body
    return found
