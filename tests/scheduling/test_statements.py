"""Compiled queries compared with their querysets; each new query needs values here."""

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection, models
from django.db.models import QuerySet
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext

from apps.clusters.models import Cluster, PodHold
from apps.nodes.models import Gpu
from apps.quotas.models import Membership, Tenant, Token
from apps.scheduling.models import Claim, Reservation
from apps.scheduling.models.claim import WAITING
from gpucloud.fastpath.compiled_queries import CompiledQuery, compiled_query
from tests.scheduling.routes import Platform


def name_of(query: CompiledQuery[Any]) -> str:
    return f"{query.build.__module__.rpartition('.')[2]}.{query.build.__name__}"


COMPILED = {name_of(query): query for query in CompiledQuery.every}


def promise_elsewhere(gpu: int) -> tuple[int, int, int]:
    """Hold a part of the GPU for a pod, nominate GPUs; return the keys of the cluster, a booked and a free GPU."""
    cluster = Cluster.objects.get().pk
    PodHold.objects.create(cluster_id=cluster, pod_uid="u9", gpu_id=gpu, core=5, memory_mib=256)
    Claim.objects.filter(state__in=WAITING).update(nominated_gpus=["GPU-1"])
    booked = Reservation.gpus.through.objects.first()
    assert booked is not None
    return cluster, booked.gpu_id, Gpu.objects.filter(node__name="gpu1", reservations=None).latest("pk").pk


OF_NODE = ("desired._rows_of_one", "nodes._lock_gpus", "nodes._lock_node", "observation._live_on")


def values(name: str, platform: Platform) -> tuple[Any, ...]:
    """Return arguments with which the query finds rows on the platform."""
    claim = platform.claim
    tenant, pool, gpu = claim.tenant_id, claim.pool_id, claim.assignments.get().gpu_id
    membership = Membership.objects.get(user__username="max")
    cluster, booked, free = promise_elsewhere(gpu)
    elsewhere = 0  # no row has this key, so everything is another cluster's
    return {
        "budgets._budgets_of": (tenant,),
        "charging._quotas_of": (tenant, pool),
        "claims._default_pools": (),
        **dict.fromkeys(OF_NODE, (claim.assignments.get().gpu.node_id,)),
        "devices._large_enough": (pool, 1),
        "limit_ranges._ranges_of": (tenant, pool),
        "member_limits._limits_of": (tenant, membership.user_id),
        "nodes._by_uid": (claim.assignments.get().gpu.node.uid,),
        "outbox._listening": (tenant,),
        "outbox._own": (tenant,),
        "outbox._of_platform": (),
        "outside._claims_of_others_on": (elsewhere, gpu),
        "outside._claims_of_pods_on": (cluster, gpu),
        "outside._holds_of_others_on": (elsewhere, gpu),
        "outside._holds_of_pod": (cluster, "u9"),
        "outside._holds_of_pods_on": (cluster, gpu),
        "outside._lock_gpu": (gpu,),
        "outside._open_on": (free, elsewhere, datetime(2000, 1, 1, tzinfo=UTC)),
        "outside._shut_on": (gpu, datetime(2100, 1, 1, tzinfo=UTC)),
        "pages._assignments": ([claim.assignments.get().pk],),
        "pages._assignments_of": ([claim.pk],),
        "pages._claims": ([claim.pk],),
        "promises._gpus_of": (claim.assignments.get().gpu.node.name, pool),
        "reserved._booked_on": (booked,),
        "reserved._nominating": (pool,),
        "serializers._pools": ("default",),
        "serializers._tenants": ("acme",),
        "claims._by_uid": (claim.uid,),
        "claims._assignments_of": (claim.pk,),
        "tokens._by_key": (Token.objects.exclude(user=None).exclude(tenant=None).latest("pk").key,),
        "tokens._role_of": (membership.user_id, membership.tenant_id),
    }[name]


def facts_of(row: Any) -> Any:
    """Return all that is loaded of a row: its fields, and the rows selected with it."""
    if not isinstance(row, models.Model):
        return row
    facts = {name: value for name, value in vars(row).items() if name != "_state"}
    return type(row), facts, {name: facts_of(other) for name, other in row._state.fields_cache.items()}


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_query_finds_what_its_queryset_finds(platform: Platform, name: str) -> None:
    query, given = COMPILED[name], values(name, platform)
    for _ in range(2):
        found = query(*given)
        assert found
        assert [facts_of(row) for row in found] == [facts_of(row) for row in query.build(*given)]


def test_a_compiled_query_executes_once_per_call(platform: Platform) -> None:
    by_slug = compiled_query(lambda slug: Tenant.objects.filter(slug=slug))
    CompiledQuery.every.remove(by_slug)
    assert [row.name for row in by_slug("acme")] == ["Acme"]
    Tenant.objects.filter(slug="acme").update(name="Acme & sons")
    with CaptureQueriesContext(connection) as asked:
        assert [row.name for row in by_slug("acme")] == ["Acme & sons"]
        assert by_slug("nobody") == by_slug(None) == []
    assert len(asked) == 3


def test_a_statement_takes_more_values_than_the_protocol_carries_beside_it(platform: Platform) -> None:
    keys = [platform.cast.acme.pk, *range(-70_000, 0)]
    assert [row.slug for row in Tenant.objects.filter(pk__in=keys)] == ["acme"]


def test_a_claim_is_shown_by_three_queries(platform: Platform) -> None:
    path = f"claims/{platform.claim.uid}/"
    platform.cast.olga.get(path)  # a token's first use is written down
    with CaptureQueriesContext(connection) as asked:
        answer = platform.cast.olga.get(path)
    assert answer.body["assignments"][0]["claim"] == str(platform.claim.uid)
    assert len(asked) == 3, "the token, the claim, its assignments"


@pytest.mark.django_db(transaction=True)
def test_a_compiled_query_locks_in_a_transaction_only() -> None:
    def locked(uid: Any) -> QuerySet[Token]:
        return Token.objects.select_for_update().filter(key=uid)

    query = compiled_query(locked)
    CompiledQuery.every.remove(query)
    with pytest.raises(TransactionManagementError):
        query(str(uuid.uuid4()))
