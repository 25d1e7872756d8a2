"""A long history: placed and released claims, inserted in bulk. For tests of lists and for benchmarks."""

import copy
import uuid
from typing import TypeVar

from django.db import connection

from apps.quotas.models import Tenant
from apps.scheduling.models import Assignment, AssignmentState, Claim, ClaimState

AT_ONCE = 2000
TABLES = (Claim._meta.db_table, Assignment._meta.db_table)
Row = TypeVar("Row", Claim, Assignment)


def add_history(assignment: Assignment, *, count: int, tenants: list[Tenant]) -> None:
    """Insert `count` released claims like this assignment's.

    They alternate between tenants, and were changed one a second until now.
    """
    for first in range(0, count, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, count))
        claims = [_past(assignment.claim, number, tenants[number % len(tenants)]) for number in numbers]
        Claim.objects.bulk_create(claims)
        Assignment.objects.bulk_create([_piece(assignment, claim) for claim in claims])
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(
                f"UPDATE {table} SET updated_at = now() - (last - id) * interval '1 second' "  # noqa: S608 - ours
                f"FROM (SELECT max(id) AS last FROM {table}) AS newest WHERE state = 'released'"
            )
            cursor.execute(f"ANALYZE {table}")


def _past(template: Claim, number: int, tenant: Tenant) -> Claim:
    claim = _copy(template)
    claim.tenant, claim.name = tenant, f"train-{number}"
    claim.state, claim.released_at = ClaimState.RELEASED, template.created_at
    claim.charged_core_percent = claim.charged_memory_mib = claim.charged_vgpus = claim.charged_gpus = 0
    return claim


def _piece(template: Assignment, claim: Claim) -> Assignment:
    piece = _copy(template)
    piece.claim, piece.state = claim, AssignmentState.RELEASED
    piece.held_core = piece.held_memory_mib = 0
    return piece


def _copy(row: Row) -> Row:
    fresh = copy.copy(row)
    fresh._state = copy.copy(row._state)
    fresh._state.adding = True
    fresh.pk, fresh.uid = None, uuid.uuid4()
    return fresh
