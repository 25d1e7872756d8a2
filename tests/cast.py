"""Users and machines of the tests, made by the product's own services.

Olga is the operator; Anna, Max and Vera are admin, member and viewer of acme; Gus is the admin of globex, who must
never see acme's objects. A machine is a node whose agent applies at once what it is told, or reports what the test
wants.
"""

import json
import pickle
import re
import secrets
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Self

import msgspec
import pytest
from django.test import Client
from django.utils import timezone

from agent import wire
from apps.nodes.models import Gpu, Node
from apps.nodes.services import nodes
from apps.quotas.models import AuditEvent, LedgerEntry, Pool, ResourceQuota, Tenant, User
from apps.quotas.principals import SCOPES, SYSTEM, Principal, of_token
from apps.quotas.services import audit, quotas, tenants, tokens
from apps.scheduling.models import Assignment, Claim, Reservation
from apps.scheduling.services.claims import lifecycle
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.claims.observation import take_observed
from apps.scheduling.services.claims.spec import ClaimSpec
from apps.scheduling.services.cycles.rounds import run_round
from tests import books
from tests.recording import Recording, created

GIB: Final = 1024
MIB_BYTES: Final = 1 << 20
MODEL: Final = "NVIDIA A10"
PROBLEM: Final = "application/problem+json"
UNSAID: Final = object()
NOT_DIVIDED: Final[Mapping[int, wire.Mig]] = {}
TICKET: Final = wire.Ticket(host="10.0.0.2", port=7000, fingerprint="0" * 64, secret="s" * 43)


@dataclass(frozen=True)
class Answer:
    """A response of the API; `body` is None if it has none."""

    status: int
    headers: Any
    raw: bytes
    body: Any

    @property
    def code(self) -> str:
        """Return the problem's code; fail if the response is not a problem in the documented form."""
        assert self.headers["Content-Type"] == PROBLEM, (self.status, self.raw[:300])
        assert {"type", "title", "status", "detail"} <= set(self.body)
        assert self.body["status"] == self.status
        return str(self.body["type"]).removeprefix("/problems/")


class Api:
    """A client of the API, with a token or without one."""

    def __init__(self, token: str | None = None, **extra: Any) -> None:
        self.token = token
        self.client = Client(raise_request_exception=False, **extra)

    def call(self, method: str, path: str, body: Any = UNSAID, *, raw: bytes | None = None, **headers: Any) -> Answer:
        """Send a request below /api/v1/ (or anywhere, if the path begins with a slash)."""
        if raw is None:
            raw = b"" if body is UNSAID else json.dumps(body).encode()
        kind = headers.pop("content_type", "application/json")
        if self.token is not None:
            headers.setdefault("Authorization", f"Bearer {self.token}")
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        url = path if path.startswith("/") else f"/api/v1/{path}"
        answer = self.client.generic(method, url, raw, content_type=kind, headers=said)
        is_json = "json" in answer.headers.get("Content-Type", "")
        return Answer(
            answer.status_code, answer.headers, answer.content, json.loads(answer.content) if is_json else None
        )

    def get(self, path: str, **headers: Any) -> Answer:
        return self.call("GET", path, **headers)

    def post(self, path: str, body: Any = UNSAID, **headers: Any) -> Answer:
        return self.call("POST", path, body, **headers)

    def patch(self, path: str, body: Any = UNSAID, **headers: Any) -> Answer:
        return self.call("PATCH", path, body, **headers)

    def delete(self, path: str, **headers: Any) -> Answer:
        return self.call("DELETE", path, **headers)


@dataclass(frozen=True)
class Cast:
    """All users."""

    acme: Tenant
    globex: Tenant
    pool: Pool
    olga: Api
    anna: Api
    max: Api
    vera: Api
    gus: Api
    nobody: Api
    # Max, for tests that call a service instead of the API.
    member: Principal


def token_for(tenant: Tenant | None, role: str = "admin", *, user: User | None = None, **facts: Any) -> str:
    """Return the text of a token."""
    facts = {"scopes": SCOPES, **facts}
    return tokens.create(principal=SYSTEM, name=f"{role}'s", tenant=tenant, role=role, user=user, **facts)[1]


def make_cast() -> Cast:
    """Create two tenants without quotas, the pool `default`, and the people."""
    acme = tenants.create_tenant(principal=SYSTEM, slug="acme", name="Acme")
    globex = tenants.create_tenant(principal=SYSTEM, slug="globex", name="Globex")
    people = {
        name: User.objects.create(username=name, is_operator=name == "olga")
        for name in ("olga", "anna", "max", "vera", "gus")
    }
    for name, role in {"anna": "admin", "max": "member", "vera": "viewer"}.items():
        tenants.set_member(principal=SYSTEM, tenant=acme, user=people[name], role=role)
    tenants.set_member(principal=SYSTEM, tenant=globex, user=people["gus"], role="admin")
    maxs = token_for(acme, "member", user=people["max"])
    token = tokens.find(maxs, source_ip=None)
    assert token is not None
    return Cast(
        acme=acme,
        globex=globex,
        pool=tenants.create_pool(principal=SYSTEM, name="default"),
        olga=Api(token_for(None, user=people["olga"])),
        anna=Api(token_for(acme, "admin", user=people["anna"])),
        max=Api(maxs),
        vera=Api(token_for(acme, "viewer", user=people["vera"])),
        gus=Api(token_for(globex, "admin", user=people["gus"])),
        nobody=Api(),
        member=of_token(token),
    )


class RecordedCast:
    """A cast that was made by the services, and can be made again without them."""

    def __init__(self) -> None:
        with created() as rows:
            self.cast = make_cast()
        self._recording = Recording(rows)
        self._numbers = {(type(row), row.pk): number for number, row in enumerate(rows)}
        self._objects = pickle.dumps((self.cast.acme, self.cast.globex, self.cast.pool))
        self._kept = {
            name: split_token(api.token) for name, api in vars(self.cast).items() if getattr(api, "token", None)
        }

    def again(self) -> Cast:
        """Return a cast with keys and tokens of its own."""
        texts = {name: f"{tokens.PREFIX}{secrets.token_hex(6)}.{secrets.token_urlsafe(32)}" for name in self._kept}
        other = dict(
            pair for name, text in texts.items() for pair in zip(self._kept[name], split_token(text), strict=True)
        )
        now = timezone.now()
        pattern = re.compile("|".join(other))
        keys = self._recording.replay(now, lambda script: pattern.sub(lambda found: other[found[0]], script))
        objects: list[Any] = list(pickle.loads(self._objects))  # noqa: S301 - dumped above
        for one in objects:
            one.pk = keys[self._numbers[type(one), one.pk]]
            one.created_at = one.updated_at = now
        acme, globex, pool = objects
        member = self.cast.member
        user = keys[self._numbers[User, member.user_id]]
        key = other[member.token_key]
        return replace(
            self.cast,
            **{name: Api(text) for name, text in texts.items()},
            acme=acme,
            globex=globex,
            pool=pool,
            nobody=Api(),
            member=replace(member, user_id=user, token_key=key, roles={acme.pk: member.roles[self.cast.acme.pk]}),
        )


def split_token(text: str) -> tuple[str, str]:
    """Return what the database has of a token: its key and its secret's digest."""
    key, _, secret = text.removeprefix(tokens.PREFIX).partition(".")
    return key, tokens.keyed_digest(secret)


recorded: list[RecordedCast] = []


def recorded_cast() -> Cast:
    """Return the cast of `make_cast`: the first of a process is recorded, the others are replayed."""
    if recorded:
        return recorded[0].again()
    recorded.append(RecordedCast())
    return recorded[0].cast


@pytest.fixture
def cast(db: None) -> Cast:
    """Create the cast in a transaction of the test's own."""
    return recorded_cast()


@pytest.fixture
def real_cast(transactional_db: None) -> Cast:
    """Create the cast, committed: for tests with several connections."""
    return recorded_cast()


def give(tenant: Tenant, *, pool: Pool | None = None, **hard: int | None) -> dict[str, ResourceQuota]:
    """Set quotas by resource."""
    return {
        resource: quotas.create_quota(principal=SYSTEM, tenant=tenant, pool=pool, resource=resource, hard=amount)
        for resource, amount in hard.items()
    }


PLENTY: Final = dict.fromkeys(("core_percent", "memory_mib"))
UNLIMITED: Final = dict.fromkeys(quotas.SETTABLE)


def give_plenty(*tenants_: Tenant) -> None:
    """Set unlimited quotas. Where these change no sum, the rows are inserted at once: a thousand tests begin so."""
    if (
        Claim.objects.filter(tenant__in=tenants_).exists()
        or Reservation.objects.filter(tenant__in=tenants_).exists()
        or Pool.objects.exclude(core_overcommit_percent=None, memory_overcommit_percent=None).exists()
        or any(tenant.cohort for tenant in tenants_)
    ):
        for tenant in tenants_:
            give(tenant, **PLENTY)
        return
    made = [ResourceQuota(tenant=tenant, resource=resource, hard=None) for tenant in tenants_ for resource in PLENTY]
    ResourceQuota.objects.bulk_create(made)
    LedgerEntry.objects.bulk_create(
        LedgerEntry(
            tenant=quota.tenant, resource=quota.resource, kind="set", amount=0, used=0, hard=None, actor=SYSTEM.name
        )
        for quota in made
    )
    AuditEvent.objects.bulk_create(
        audit.draft(SYSTEM, "quota.create", quota, after={"pool": None, "resource": quota.resource, **UNLIMITED})
        for quota in made
    )


def gpu_uuid(node: str, index: int) -> str:
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{node}-{index}')}"


def hello(
    name: str,
    *,
    gpus: int = 4,
    memory_mib: int = 24 * GIB,
    model: str = MODEL,
    host_memory_mib: int | None = None,
    carry: bool = False,
    mig: Mapping[int, wire.Mig] = NOT_DIVIDED,
    backends: Sequence[wire.BackEnd] = (),
) -> wire.Hello:
    """Return the hello of this machine's agent; with host memory it can suspend claims, and carry them if wanted.

    `mig`: the GPUs in MIG mode, by index.
    """
    can = host_memory_mib is not None

    def gpu(index: int) -> wire.Gpu:
        mode = mig.get(index, msgspec.UNSET)
        size = memory_mib * MIB_BYTES
        return wire.Gpu(uuid=gpu_uuid(name, index), index=index, model=model, memory_bytes=size, mig=mode)

    return wire.Hello(
        agent_version="1",
        driver_version="1",
        hostname=name,
        run_dir="/run/gpucloud",
        library="/usr/lib/libvcuda.so",
        simulated=True,
        gpus=[gpu(index) for index in range(gpus)],
        suspend=True if can else msgspec.UNSET,
        move=True if can else msgspec.UNSET,
        restart=True,
        shared_instances=True,
        lends_memory=can or msgspec.UNSET,
        carry=carry or msgspec.UNSET,
        backends=list(backends) or msgspec.UNSET,
        host_memory_bytes=(host_memory_mib or 0) * MIB_BYTES if can else msgspec.UNSET,
    )


class Machine:
    """A node, and its agent under the test's control."""

    def __init__(self, name: str, pool: Pool, **facts: Any) -> None:
        self.name = name
        self.node, self.enrolment = nodes.create_node(principal=SYSTEM, name=name, pool=pool)
        nodes.take_hello(node=self.node, hello=hello(name, **facts))
        self.node.refresh_from_db()

    def stay_online(self) -> Self:
        """Keep its last heartbeat fresh for an hour: on a busy machine a test takes longer than ten seconds."""
        Node.objects.filter(pk=self.node.pk).update(last_seen_at=timezone.now() + timedelta(hours=1))
        return self

    def gpu(self, index: int = 0) -> Gpu:
        return Gpu.objects.get(uuid=gpu_uuid(self.name, index))

    def say(self, *observations: wire.Observation, frame: int | None = None) -> None:
        """Send one `observed` frame."""
        now = Node.objects.get(pk=self.node.pk).frame if frame is None else frame
        take_observed(node=self.node, frame=wire.Observed(frame=now, assignments=list(observations)))

    def obey(self, *, memory_bytes: int = 0) -> None:
        """Apply the whole desired state, and report it."""
        self.say(*(done(wanted, memory_bytes=memory_bytes) for wanted in desired_state(self.node).assignments))


def lose(machine: Machine) -> None:
    """Let its agent be silent for a minute."""
    Node.objects.filter(pk=machine.node.pk).update(last_seen_at=timezone.now() - timedelta(minutes=1))


def done(wanted: wire.Assignment, *, memory_bytes: int = 0) -> wire.Observation:
    """Return an agent's report of an assignment in its desired state."""
    if not wanted.present:
        return wire.Observation(uid=wanted.uid, generation=wanted.generation, state="released")
    if wanted.suspended:
        saved = memory_bytes or msgspec.UNSET
        offers = wanted.carry is not None and wanted.carry.ticket is None
        return wire.Observation(
            uid=wanted.uid,
            generation=wanted.generation,
            state="suspended",
            saved_bytes=saved,
            ticket=TICKET if offers else msgspec.UNSET,
        )
    state: wire.AssignmentState = "over_limit" if memory_bytes > wanted.memory_bytes else "in_force"
    return wire.Observation(uid=wanted.uid, generation=wanted.generation, state=state, memory_bytes=memory_bytes)


def seen(assignment: Assignment, state: wire.AssignmentState = "in_force", **facts: Any) -> wire.Observation:
    """Return an observation of this assignment, by default at its desired generation."""
    facts.setdefault("generation", Assignment.objects.get(pk=assignment.pk).generation)
    return wire.Observation(uid=str(assignment.uid), state=state, **facts)


def ask(cast: Cast, *, tenant: Tenant | None = None, principal: Principal = SYSTEM, **asked: Any) -> Claim:
    """Create a claim through the service; small by default."""
    facts = {"name": "train", "core_request": 30, "memory_mib": 8 * GIB, "pool": cast.pool, **asked}
    facts.setdefault("core_limit", facts["core_request"])
    return lifecycle.create_claim(principal=principal, spec=ClaimSpec(tenant=tenant or cast.acme, **facts))


def placed(cast: Cast, machine: Machine, **asked: Any) -> tuple[Claim, Assignment]:
    """Create an active claim; return it and its first assignment."""
    claim = ask(cast, **asked)
    run_round(cast.pool)
    machine.obey()
    claim.refresh_from_db()
    first = claim.assignments.order_by("pk").first()
    assert first is not None
    assert claim.state == "active", (claim.state, claim.reasons)
    return claim, first


used = books.used


def assert_books_agree() -> None:
    """Check that quotas, ledger, claims, assignments and GPUs agree, also while workers write."""
    with books.one_moment():
        books.assert_agree()


def everything(path: Api, url: str) -> Iterator[Any]:
    """Return every row of a list, page by page."""
    while url:
        answer = path.get(url)
        assert answer.status == 200, answer.body
        yield from answer.body["results"]
        url = (answer.body["next"] or "").removeprefix("http://testserver")


def uids(rows: Iterable[Claim]) -> list[str]:
    return [str(row.uid) for row in rows]
