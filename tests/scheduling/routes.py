"""Every route of the API, found by walking the URL resolver, with an object of acme's for each."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone

from apps.clusters.models import Cluster, DeviceClaim, NamespaceBinding, PodClaim
from apps.clusters.services import bindings, clusters
from apps.jobs.models import Job, JobArray, JobFiles, JobOutput
from apps.nodes.models import Condition, Gpu, Node, UsageFrame
from apps.quotas.api.views import ApiView
from apps.quotas.models import (
    AuditEvent,
    Budget,
    BudgetPeriod,
    CohortShare,
    IdempotencyRecord,
    Invitation,
    LedgerEntry,
    LimitRange,
    MemberLimit,
    Membership,
    Organisation,
    OrganisationQuota,
    Pool,
    Price,
    QuotaRequest,
    ResourceQuota,
    Tenant,
    Token,
    User,
    Webhook,
    WebhookDelivery,
)
from apps.quotas.principals import SYSTEM, of_user
from apps.quotas.services import (
    accounts,
    invitations,
    tokens,
)
from apps.quotas.services.webhooks import hooks
from apps.reservations.lifecycle import create_reservation
from apps.scheduling.models import Assignment, Claim, Proposal, Reservation, Round
from apps.scheduling.services.claims.sharing import change_pool
from tests.cast import Cast, Machine, ask, give_plenty, lose, make_cast, placed
from tests.clusters.kubeconfigs import kubeconfig
from tests.emptying import empty
from tests.jobs.routes import make_job
from tests.quotas.routes import MORE, make_limits, make_money, make_organisation

# Any signed-in user may see that the object exists; the other routes answer 404 to a foreign tenant.
SHARED = {
    "pools/<slug:name>/",
    "pools/<slug:name>/rebalance/",
    "pools/<slug:name>/queue/",
    "pools/<slug:name>/fair-share/",
    "pools/<slug:name>/calendar/",
    "nodes/<slug:name>/",
    "nodes/<slug:name>/enrolment/",
    "nodes/<slug:name>/forget/",
    "nodes/<slug:name>/drain/",
    "nodes/<slug:name>/repair/",
    "nodes/<slug:name>/lift-fence/",
    "gpus/<slug:uuid>/",
    "gpus/<slug:uuid>/clear/",
    "gpus/<slug:uuid>/processes/",
    "prices/<int:pk>/",
}
OPERATORS = {
    "nodes/<slug:name>/drift/",
    "rounds/<int:pk>/",
    "pools/<slug:name>/consolidation/",
    "pools/<slug:name>/consolidation/accept/",
    "pools/<slug:name>/what-if/",
}
# Enrolment: its token is its idempotency, a repeat with the same key is allowed. An import: existing objects stay, and
# new ones are made pod by pod, not in one transaction.
# A ticket is good once: a repeated request gets another one.
TICKETS = {"claims/<uuid:uid>/remote/"}
NOT_IDEMPOTENT = {"nodes/enrol/", "clusters/join/", "clusters/<slug:name>/import/"} | TICKETS
WITHOUT_TOKEN = {"nodes/enrol/", "clusters/join/"}
END = (timezone.now() + timedelta(days=3)).isoformat()
NOBODY = "00000000-0000-0000-0000-000000000000"
# A valid body, by method and route, if it is not empty.
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "claims/<uuid:uid>/remote/"): {"key_sha256": "0" * 64},
    ("POST", "tenants/"): {"slug": "initech"},
    ("PATCH", "tenants/<slug:slug>/"): {"weight": 2},
    ("POST", "organisations/"): {"slug": "chemistry", "parent": "university"},
    ("PATCH", "organisations/<slug:slug>/"): {"name": "Physics"},
    ("POST", "organisation-quotas/"): {"organisation": "physics", "resource": "vgpus", "hard": 10},
    ("PATCH", "organisation-quotas/<int:pk>/"): {"hard": 200_000},
    ("POST", "tenants/<slug:slug>/members/"): {"username": "max", "role": "viewer"},
    ("POST", "pools/"): {"name": "shared"},
    ("PATCH", "pools/<slug:name>/"): {"core_ceiling": 90},
    ("POST", "budgets/"): {"tenant": "acme", "period": "week", "gpu_hours": "100"},
    ("PATCH", "budgets/<int:pk>/"): {"gpu_hours": "2000"},
    ("POST", "limit-ranges/"): {"tenant": "acme", "field": "gpu_count", "maximum": 4},
    ("PATCH", "limit-ranges/<int:pk>/"): {"maximum": 90},
    ("POST", "member-limits/"): {"tenant": "acme", "member": "max", "resource": "vgpus", "hard": 4},
    ("PATCH", "member-limits/<int:pk>/"): {"hard": 4},
    ("POST", "prices/"): {"gpu_model": "NVIDIA A10", "valid_from": "2027-01-01", "per_gpu_hour": "2.50"},
    ("POST", "quota-requests/"): MORE,
    ("POST", "quota-requests/<uuid:uid>/deny/"): {"words": "Not this month."},
    ("POST", "quota-requests/<uuid:uid>/counter/"): {"amount": 1},
    ("POST", "pools/<slug:name>/consolidation/accept/"): {"moves": [{"claim": NOBODY, "to_gpus": ["GPU-0"]}]},
    ("PATCH", "me/"): {"time_zone": "Europe/Berlin"},
    ("POST", "me/tokens/"): {"name": "laptop"},
    ("PATCH", "me/notices/"): {"idle": "off"},
    ("PATCH", "users/<str:username>/"): {"active": False},
    ("POST", "invitations/"): {"username": "zoe", "tenant": "acme"},
    ("POST", "quotas/"): {"tenant": "acme", "resource": "vgpus", "hard": 10},
    ("PATCH", "quotas/<int:pk>/"): {"hard": 10},
    ("POST", "tokens/"): {"name": "ci", "tenant": "acme"},
    ("POST", "tokens/<slug:key>/rotate/"): {"overlap_seconds": 60},
    ("POST", "nodes/"): {"name": "gpu9", "pool": "default"},
    ("POST", "proposals/<uuid:uid>/dismiss/"): {"words": "It starts on Monday."},
    ("PATCH", "nodes/<slug:name>/"): {"cordoned": True},
    ("PATCH", "gpus/<slug:uuid>/"): {"cordoned": True},
    ("POST", "nodes/enrol/"): {"token": "gpe_wrong", "key_digest": "0" * 64},
    ("POST", "clusters/join/"): {"cluster": "gpu-k8s", "token": "a.b.c", "key_digest": "0" * 64},
    ("POST", "claims/"): {"tenant": "acme", "core_request": 10, "memory_mib": 100},
    ("PATCH", "claims/<uuid:uid>/"): {"core_limit": 90},
    ("POST", "jobs/"): {"tenant": "acme", "command": ["true"], "core_request": 5, "memory_mib": 100},
    ("POST", "job-files/<uuid:uid>/pieces/"): {"offset": 0, "content": "AAAA"},
    ("POST", "job-files/"): {"tenant": "acme", "sha256": "1" * 64, "size": 10},
    ("POST", "reservations/"): {"tenant": "acme", "core_request": 5, "memory_mib": 100, "end_at": END},
    ("PATCH", "reservations/<uuid:uid>/"): {"name": "later"},
    ("POST", "webhooks/"): {"tenant": "acme", "url": "https://hooks.example.org/x", "events": ["claim.active"]},
    ("PATCH", "webhooks/<uuid:uid>/"): {"description": "the chat"},
    ("POST", "clusters/"): {"name": "kube", "pool": "default", "kubeconfig": kubeconfig()},
    ("PATCH", "clusters/<slug:name>/"): {"enabled": False},
    ("POST", "clusters/<slug:name>/namespaces/"): {"namespace": "research", "tenant": "acme"},
    ("PATCH", "clusters/<slug:name>/namespaces/<int:pk>/"): {"tenant": "acme"},
    ("POST", "scheduler-configuration/"): {"configuration": {"kind": "Policy", "apiVersion": "v1", "extenders": []}},
}


@dataclass(frozen=True)
class Route:
    """A pattern below /api/v1/ and its view."""

    pattern: str
    view: type[ApiView]

    @property
    def methods(self) -> list[str]:
        return [name.upper() for name in ("get", "post", "patch", "delete") if hasattr(self.view, name)]

    @property
    def has_object(self) -> bool:
        return "<" in self.pattern

    def body(self, method: str) -> dict[str, Any]:
        return BODIES.get((method, self.pattern), {})


def walk(patterns: list[Any], prefix: str = "") -> Iterator[Route]:
    for item in patterns:
        route = prefix + str(item.pattern)
        if isinstance(item, URLResolver):
            yield from walk(item.url_patterns, route)
        elif isinstance(item, URLPattern) and route.startswith("api/v1/"):
            view = getattr(item.callback, "view_class", None)
            if view is not None and issubclass(view, ApiView):
                yield Route(route.removeprefix("api/v1/"), view)


ROUTES = list(walk(get_resolver().url_patterns))
OPERATIONS = [(route, method) for route in ROUTES for method in route.methods]


def name_of(value: object) -> str:
    """Return the route's name for pytest's ids."""
    return value.pattern if isinstance(value, Route) else str(value)


@dataclass(frozen=True)
class Platform:
    """An object of acme's, or of the platform, behind every route."""

    cast: Cast
    machine: Machine
    claim: Claim
    paths: dict[str, str]

    def path(self, route: Route) -> str:
        return self.paths.get(route.pattern, route.pattern)


def make_proposal(claim: Claim) -> dict[str, str]:
    """Create a proposal that can be accepted and dismissed, in a pool with previews. Return its paths, by route."""
    change_pool(principal=SYSTEM, pool=claim.pool, rebalance_mode="propose")
    proposal = Proposal.objects.create(
        pool=claim.pool,
        claim=claim,
        kind="limit",
        policy="feedback",
        before={"core_limit": claim.core_limit},
        after={"core_limit": claim.core_limit + 20},
        explanation="Its limit holds it back.",
        numbers={"core_mean_percent": 29.5},
    )
    return {
        "pools/<slug:name>/consolidation/": "pools/default/consolidation/",
        "pools/<slug:name>/fair-share/": "pools/default/fair-share/",
        "pools/<slug:name>/consolidation/accept/": "pools/default/consolidation/accept/",
        "pools/<slug:name>/rebalance/": "pools/default/rebalance/",
        "pools/<slug:name>/what-if/": "pools/default/what-if/",
        **{f"proposals/<uuid:uid>/{verb}": f"proposals/{proposal.uid}/{verb}" for verb in ("", "accept/", "dismiss/")},
    }


def tomorrow(days: int = 1) -> datetime:
    return timezone.now() + timedelta(days=days)


def make_reservation(cast: Cast) -> dict[str, str]:
    """Create a reservation of acme's for tomorrow. Return its paths, by route."""
    asked: dict[str, Any] = {"name": "exam", "core_request": 5, "memory_mib": 100, "pool": cast.pool}
    row = create_reservation(principal=SYSTEM, tenant=cast.acme, start_at=tomorrow(), end_at=tomorrow(2), **asked)[0]
    paths = {f"reservations/<uuid:uid>/{verb}": f"reservations/{row.uid}/{verb}" for verb in ("", "release/")}
    return {"pools/<slug:name>/calendar/": "pools/default/calendar/", **paths}


def make_webhook(cast: Cast) -> dict[str, str]:
    """Create a webhook of acme's, and a failed delivery. Return their paths, by route."""
    url = "https://hooks.example.org/"
    hook, _ = hooks.create(principal=SYSTEM, tenant=cast.acme, url=url, events=["claim.active"])
    hooks.create(principal=SYSTEM, tenant=None, url=url, events=["node.lost"])
    delivery = hooks.send_test(principal=SYSTEM, hook=hook)
    delivery.change(state="failed", next_attempt_at=None)
    again = "webhooks/<uuid:uid>/deliveries/<uuid:delivery>/redeliver/"
    return {
        again: f"webhooks/{hook.uid}/deliveries/{delivery.uid}/redeliver/",
        **{
            f"webhooks/<uuid:uid>/{verb}": f"webhooks/{hook.uid}/{verb}"
            for verb in ("", "rotate/", "test/", "deliveries/")
        },
    }


def make_cluster(cast: Cast, claim: Claim) -> dict[str, str]:
    """Create a cluster with a namespace of acme's, and the pod of this claim. Return their paths, by route."""
    cluster = clusters.connect(principal=SYSTEM, name="gpu-k8s", pool=cast.pool, kubeconfig=kubeconfig())
    binding = bindings.bind(principal=SYSTEM, cluster=cluster, namespace="ml", tenant=cast.acme)
    facts = {"node_name": "gpu1", "core": 30, "memory_mib": 8192, "gpu_indexes": [0], "container_index": 0}
    names = {"namespace": "ml", "pod": "train", "pod_uid": "u1", "container": "main"}
    PodClaim.objects.create(cluster=cluster, claim=claim, **names, **facts)
    DeviceClaim.objects.create(cluster=cluster, uid="u2", namespace="ml", name="gpu", tenant=cast.acme, problem="none")
    return {
        **{f"clusters/<slug:name>/{verb}": f"clusters/gpu-k8s/{verb}" for verb in CLUSTER_VERBS},
        "clusters/<slug:name>/namespaces/<int:pk>/": f"clusters/gpu-k8s/namespaces/{binding.pk}/",
    }


def make_people(cast: Cast) -> dict[str, str]:
    """Create an invitation into acme, and a session of the operator's. Return their paths, by route."""
    invitation, _ = invitations.invite(principal=SYSTEM, username="zoe", tenant=cast.acme)
    client, olga = Client(), User.objects.get(username="olga")
    client.force_login(olga)
    tokens.create_personal(principal=of_user(olga), name="laptop", scopes=["claims:read"])
    return {
        "users/<str:username>/": "users/max/",
        "users/<str:username>/password-reset/": "users/max/password-reset/",
        "invitations/<uuid:uid>/": f"invitations/{invitation.uid}/",
        "me/sessions/<slug:session>/": f"me/sessions/{client.session[accounts.SESSION_ID]}/",
    }


NO_GROUP: dict[str, Any] = {}
ELASTIC: dict[str, Any] = {"group": "wide", "group_size": 1, "group_most": 2}
CLUSTER_VERBS = ("", "pods/", "resource-claims/", "namespaces/", "connection/", "quotas/", "import/")
CLAIM_VERBS = ("", "release/", "renew/", "env/", "forecast/", "suspend/", "resume/", "move/", "remote/")
NODE_VERBS = ("", "enrolment/", "drain/", "drift/", "repair/", "lift-fence/")


def edit_a_page(machine: Machine, claim: Claim) -> None:
    """Edit a limits page on the node, so that there is something to repair."""
    drift = {"kind": "limits-changed", "mendable": True, "detail": "It was edited.", "since": 1.5}
    machine.node.change(drifts=[{**drift, "claim_uid": str(claim.uid)}])


def allow_remote(cast: Cast, machine: Machine) -> Machine:
    """Let clients on other machines use claims of acme."""
    endpoint = {"host": "10.0.0.7", "port": 7443, "fingerprint": "f" * 64, "component": "lupine", "build": "0" * 12}
    machine.node.change(remote=endpoint)
    Pool.objects.filter(pk=cast.pool.pk).update(remote=True)
    Tenant.objects.filter(pk=cast.acme.pk).update(remote=True)
    return machine


def make_platform(cast: Cast) -> Platform:
    give_plenty(cast.acme, cast.globex)
    machine = allow_remote(cast, Machine("gpu1", cast.pool, host_memory_mib=16384))
    claim, assignment = placed(cast, machine, lease_seconds=3600)
    edit_a_page(machine, claim)
    lose(Machine("lost1", cast.pool, gpus=8))
    for group in (NO_GROUP, ELASTIC):
        ask(cast, gpu_count=8, core_request=90, **group)  # It stays queued: no other machine has eight GPUs.
    quota = ResourceQuota.objects.filter(tenant=cast.acme).first()
    token, _ = tokens.create(principal=SYSTEM, name="ci", tenant=cast.acme)
    done = Round.objects.first()
    assert quota is not None
    assert done is not None
    paths = {
        "tenants/<slug:slug>/": "tenants/acme/",
        "tenants/<slug:slug>/members/": "tenants/acme/members/",
        "tenants/<slug:slug>/members/<str:username>/": "tenants/acme/members/max/",
        **{f"pools/<slug:name>/{verb}": f"pools/default/{verb}" for verb in ("", "queue/")},
        **make_money(cast),
        **make_proposal(claim),
        **make_limits(cast) | make_organisation(cast),
        "quotas/<int:pk>/": f"quotas/{quota.pk}/",
        "quotas/<int:pk>/ledger/": f"quotas/{quota.pk}/ledger/",
        "tokens/<slug:key>/": f"tokens/{token.key}/",
        "tokens/<slug:key>/rotate/": f"tokens/{token.key}/rotate/",
        **{f"nodes/<slug:name>/{verb}": f"nodes/gpu1/{verb}" for verb in NODE_VERBS},
        "nodes/<slug:name>/forget/": "nodes/lost1/forget/",
        **{f"gpus/<slug:uuid>/{verb}": f"gpus/{machine.gpu().uuid}/{verb}" for verb in ("", "clear/", "processes/")},
        **{f"claims/<uuid:uid>/{verb}": f"claims/{claim.uid}/{verb}" for verb in CLAIM_VERBS},
        "groups/<str:key>/": "groups/wide/",
        "assignments/<uuid:uid>/": f"assignments/{assignment.uid}/",
        "rounds/<int:pk>/": f"rounds/{done.pk}/",
        **make_reservation(cast) | make_job(cast, machine),
        **make_webhook(cast),
        **make_cluster(cast, claim),
        **make_people(cast),
    }
    # A silent node refuses to suspend claims.
    machine.stay_online()
    return Platform(cast, machine, claim, paths)


@pytest.fixture(scope="module")
def module_platform(django_db_setup: None, django_db_blocker: Any) -> Iterator[Platform]:
    """Create the platform once for a module whose tests change it in transactions of their own only."""
    with django_db_blocker.unblock():
        platform = make_platform(make_cast())
        connection.close()
    yield platform
    with django_db_blocker.unblock():
        empty(connection)
        connection.close()


@pytest.fixture
def platform(module_platform: Platform, db: None) -> Platform:
    return module_platform


STORED = [
    Assignment, AuditEvent, Budget, BudgetPeriod, Claim, CohortShare, Condition, Gpu, IdempotencyRecord, LedgerEntry,
    Membership, Node, Pool, Price, Proposal, QuotaRequest, ResourceQuota, Round, Tenant, Token, UsageFrame,
    LimitRange, MemberLimit, Organisation, OrganisationQuota,
    Reservation, Webhook, WebhookDelivery, Cluster, DeviceClaim, NamespaceBinding, PodClaim,
    Invitation, Job, JobArray, JobFiles, JobOutput, User,
]  # fmt: skip


# Hundreds of tests dump everything twice: one statement, not one a table.
TABLES = " UNION ALL ".join(
    f"SELECT '{model.__name__}', to_jsonb(t) - 'last_used_at' - 'last_seen_at' FROM {model._meta.db_table} t"  # noqa: S608 - our own
    for model in STORED
)
EVERYTHING = f"SELECT name, row::text FROM ({TABLES}) AS found (name, row) ORDER BY 1, 2"  # noqa: S608 - the same


def dump_database() -> dict[str, list[str]]:
    """Return all rows as JSON by model, except the time at which a token was last used."""
    rows = defaultdict[str, list[str]](list)
    with connection.cursor() as cursor:
        cursor.execute(EVERYTHING)
        for name, row in cursor.fetchall():
            rows[name].append(row)
    return rows
