"""Constraints behind the code: the database itself refuses invalid states."""

import uuid
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import F

from apps.nodes.models import Gpu
from apps.quotas.models import AuditEvent, LedgerEntry, Membership, ResourceQuota, Tenant
from apps.quotas.principals import SYSTEM
from apps.quotas.services.charging import ChargeContext, charge
from apps.scheduling.models import Assignment, Claim
from tests.cast import Cast, Machine, give, give_plenty, placed


@pytest.fixture
def quota(cast: Cast) -> ResourceQuota:
    return give(cast.acme, core_percent=100)["core_percent"]


@pytest.mark.parametrize(
    ("constraint", "values"),
    [
        ("quota_never_exceeded", {"used": 101}),
        ("quota_amounts_not_negative", {"used": -1}),
        ("quota_amounts_not_negative", {"borrowed": -1}),
        ("quota_amounts_not_negative", {"excess": -1}),
        ("quota_hard_not_negative", {"hard": -1}),
        ("quota_resource_known", {"resource": "gold"}),
    ],
)
def test_a_quota_cannot_be_written_wrong(quota: ResourceQuota, constraint: str, values: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError, match=constraint):
        ResourceQuota.objects.filter(pk=quota.pk).update(**values)


def test_a_quota_in_use_cannot_be_lowered_behind_the_services_back(cast: Cast, quota: ResourceQuota) -> None:
    context = ChargeContext(principal=SYSTEM, tenant=cast.acme, pool=cast.pool, claim_uid=uuid.uuid4())
    charge(context, amounts={"core_percent": 80})
    with pytest.raises(IntegrityError, match="quota_never_exceeded"):
        ResourceQuota.objects.filter(pk=quota.pk).update(hard=79)


def test_there_is_one_quota_per_tenant_pool_and_resource_even_where_the_pool_is_null(quota: ResourceQuota) -> None:
    with pytest.raises(IntegrityError, match="quota_once"):
        ResourceQuota.objects.create(tenant=quota.tenant, pool=None, resource="core_percent", hard=1)


@pytest.mark.parametrize(
    ("constraint", "values"),
    [
        ("gpu_core_promised_once", {"core_used": 101}),
        ("gpu_memory_promised_once", {"memory_used_mib": F("memory_mib") + 1}),
        ("core_used|gpu_lends_what_is_promised", {"core_used": -1}),
        ("memory_used_mib", {"memory_used_mib": -1}),
    ],
)
def test_a_gpu_cannot_be_promised_twice(cast: Cast, constraint: str, values: dict[str, Any]) -> None:
    gpu = Machine("gpu1", cast.pool).gpu()
    with pytest.raises(IntegrityError, match=constraint):
        Gpu.objects.filter(pk=gpu.pk).update(**values)


def test_a_released_claim_cannot_keep_a_charge(cast: Cast) -> None:
    give_plenty(cast.acme)
    claim, assignment = placed(cast, Machine("gpu1", cast.pool))
    with pytest.raises(IntegrityError, match="claim_released_charges_nothing"), transaction.atomic():
        Claim.objects.filter(pk=claim.pk).update(state="released")
    with pytest.raises(IntegrityError, match="assignment_released_holds_nothing"):
        Assignment.objects.filter(pk=assignment.pk).update(state="released")


def test_a_claim_has_one_live_assignment_per_gpu(cast: Cast) -> None:
    give_plenty(cast.acme)
    _, assignment = placed(cast, Machine("gpu1", cast.pool))
    assignment.pk, assignment.uid = None, uuid.uuid4()
    with pytest.raises(IntegrityError, match="assignment_once_per_gpu"):
        assignment.save(force_insert=True)


def test_roles_and_weights_are_known_ones(cast: Cast) -> None:
    with pytest.raises(IntegrityError, match="membership_role_known"), transaction.atomic():
        Membership.objects.update(role="owner")
    with pytest.raises(IntegrityError, match="tenant_weight_positive"):
        Tenant.objects.update(weight=0)


@pytest.mark.parametrize("model", [LedgerEntry, AuditEvent])
def test_history_can_be_added_to_only(quota: ResourceQuota, model: type[LedgerEntry | AuditEvent]) -> None:
    rows = model._default_manager.all()
    assert rows.exists()
    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
        rows.update(actor="nobody")
    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
        rows.delete()
    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {model._meta.db_table}")  # noqa: S608 - the table's own name
    assert rows.exists()
