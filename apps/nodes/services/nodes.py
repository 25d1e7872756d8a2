"""Creation of nodes, enrolment of their agents, and facts from the agents' hello."""

import hashlib
import secrets
import uuid
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import msgspec
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from agent import wire
from apps.nodes.models import Gpu, Node
from apps.nodes.models.node import DrainMode
from apps.nodes.services import mig
from apps.nodes.services.kubernetes_names import require_own_name
from apps.quotas.models import Pool
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from apps.quotas.services.names import NameTaken, refuse_taken
from apps.quotas.services.tenants import InUse
from apps.quotas.services.tokens import is_digest_of, keyed_digest, keyed_digests
from gpucloud.api import etags
from gpucloud.errors import Conflict, Denied
from gpucloud.fastpath.compiled_queries import compiled_query

ENROLMENT_PREFIX = "gpe_"
KEY_PREFIX = "gpn_"
ENROLMENT_LASTS = timedelta(hours=24)
MIB = 1 << 20


class EnrolmentRefused(Denied, code="enrolment-refused", title="Enrolment refused"):
    """The enrolment token is wrong, spent or expired."""


class CredentialRevoked(Denied, code="credential-revoked", title="This agent's key is no longer valid"):
    """The agent's key is no longer its node's: the node was forgotten, or enrolled again."""


class GpuElsewhere(Conflict, code="gpu-elsewhere", title="The GPU belongs to another node"):
    """A GPU of the hello belongs to another node."""


@transaction.atomic
def create_node(
    *, principal: Principal, name: str, pool: Pool, labels: Mapping[str, str] | None = None
) -> tuple[Node, str]:
    """Create a node that waits for its agent; return it and its one-time enrolment token. Raises NameTaken."""
    principal.require_operator()
    with refuse_taken(lambda: NameTaken(f"There is a node {name} already.", name=name)):
        node = Node.objects.create(name=name, pool=pool, labels=dict(labels or {}))
    after = {"pool": pool.name, **({"labels": node.labels} if labels else {})}
    audit.record(principal, "node.create", audit.Named("node", name), after=after)
    return node, _new_enrolment(node)


@transaction.atomic
def renew_enrolment(*, principal: Principal, node: Node, versions: etags.Versions = None) -> tuple[Node, str]:
    """Create a new one-time token; the next enrolment replaces the agent's key and revokes the old agent."""
    principal.require_operator()
    node = etags.lock(node, versions)
    audit.record(principal, "node.renew_enrolment", node)
    return node, _new_enrolment(node)


def _new_enrolment(node: Node) -> str:
    token = ENROLMENT_PREFIX + secrets.token_urlsafe(32)
    node.change(enrolment_digest=keyed_digest(token), enrolment_expires_at=timezone.now() + ENROLMENT_LASTS)
    return token


@transaction.atomic
def enrol(*, token: str, key_digest: str, source_ip: str | None = None) -> Node:
    """Give the token's node this key. The agent sends only the SHA-256 of its key, so no secret is returned.

    The same token with the same key may come again: the first response may have been lost. Raises EnrolmentRefused.
    """
    node = Node.objects.select_for_update().filter(enrolment_digest__in=keyed_digests(token)).first()
    if node is None or (node.enrolment_expires_at or timezone.now()) <= timezone.now():
        raise EnrolmentRefused("This enrolment token is wrong or has expired: ask an operator for a new one.")
    if node.enrolled_at and node.enrolled_at >= node.enrolment_expires_at - ENROLMENT_LASTS:  # type: ignore[operator]
        if not is_digest_of(node.key_digest or "", key_digest):
            raise EnrolmentRefused("This enrolment token was used already: ask an operator for a new one.")
        return node
    node.change(key_digest=keyed_digest(key_digest), enrolled_at=timezone.now())
    agent = Principal(name=f"agent:{node.name}", source_ip=source_ip)
    audit.record(agent, "node.enrol", node)
    return node


@transaction.atomic
def adopt(*, principal: Principal, node: Node, new: bool, key_digest: str, **facts: Any) -> Node:
    """Give the node this key, if its cluster vouches for the agent. The same key may come again.

    Raises EnrolmentRefused while an agent with another key is connected, because one of the two machines is not this
    node; also if the node is not `new` and has no key, because it was forgotten and only an operator's token enrols it
    again.
    """
    node = Node.objects.select_for_update().get(pk=node.pk)
    if node.key_digest is not None:
        if is_digest_of(node.key_digest, key_digest):
            return node
        if node.online:
            raise EnrolmentRefused(f"Node {node.name} is connected with another key.")
    elif not new:
        raise EnrolmentRefused(f"Node {node.name} was forgotten: an operator gives its agent a token of its own.")
    node.change(key_digest=keyed_digest(key_digest), enrolled_at=timezone.now(), **facts)
    audit.record(principal, "node.enrol", node)
    return node


@compiled_query
def _by_uid(uid: Any) -> QuerySet[Node]:
    return Node.objects.filter(uid=uid)


def authenticate(*, credential: str) -> Node | None:
    """Return the node of the credential `gpn_<node uid>.<secret>`, or None."""
    text, dot, secret = credential.removeprefix(KEY_PREFIX).partition(".")
    try:
        uid = uuid.UUID(text)
    except ValueError:
        return None
    node = next(iter(_by_uid(uid)), None)
    if not credential.startswith(KEY_PREFIX) or not dot or node is None or node.key_digest is None:
        return None
    shown = hashlib.sha256(secret.encode()).hexdigest()
    if not is_digest_of(node.key_digest, shown):
        return None
    if node.key_digest != (kept := keyed_digest(shown)):
        # Store the digest under the present SECRET_KEY: the agent no longer needs the previous one.
        Node.objects.filter(pk=node.pk, key_digest=node.key_digest).update(key_digest=kept)
        node.key_digest = kept
    return node


@transaction.atomic
def change_node(*, principal: Principal, node: Node, versions: etags.Versions = None, **values: Any) -> Node:
    """Cordon, uncordon or move to another pool. Raises InUse, PreconditionFailed."""
    principal.require_operator()
    node = etags.lock(node, versions)
    # A borrower allocates only memory, and runs nevertheless.
    carrying = Q(core_used__gt=0) | Q(core_borrowed__gt=0) | Q(memory_used_mib__gt=0)
    carries = node.host_memory_used_mib > 0 or node.gpus.filter(carrying).exists()
    if "pool" in values and values["pool"] != node.pool and carries:
        raise InUse(f"Node {node.name} carries claims of pool {node.pool}: release them first.")
    before = {name: _fact(getattr(node, name)) for name in values}
    more: dict[str, Any] = {}
    if any(values.get(name, getattr(node, name)) != getattr(node, name) for name in ("pool", "repair_drift")):
        # These change the desired state (a pool has its own rules); the repair of pushes sends it within seconds.
        more["frame"] = node.frame + 1
    if values.get("cordoned") is False:
        more |= {"draining_at": None, "drain_grace_seconds": None, "drain_mode": DrainMode.REQUEUE}
    node.change(**values, **more)
    after = {name: _fact(value) for name, value in values.items()}
    audit.record(principal, "node.change", node, before=before, after=after)
    return node


def _fact(value: Any) -> Any:
    """Return the value as the audit log has it: a pool by its name."""
    return value.name if isinstance(value, Pool) else value


@transaction.atomic
def take_hello(*, node: Node, hello: wire.Hello) -> Node:
    """Store the facts of the agent's hello. GPUs that are gone stay, marked, with their allocations.

    Raises GpuElsewhere, KubernetesNameTaken, CredentialRevoked, and changes nothing then.
    """
    # Order of locks: GPUs before their node, in key order, as in a round.
    known = {gpu.uuid: gpu for gpu in _lock_gpus(node.pk)}
    key, (node,) = node.key_digest, _lock_node(node.pk)
    if node.key_digest != key:
        raise CredentialRevoked(f"Node {node.name} was forgotten or enrolled anew: enrol this agent again.")
    require_own_name(node=node, name=hello.kubernetes_node or "")
    said = {gpu.uuid: gpu for gpu in hello.gpus}
    if unknown := said.keys() - known.keys():
        known |= _take_over(node, unknown)
    for gpu in hello.gpus:
        _take_gpu(node, gpu, known.get(gpu.uuid))
    if gone := [gpu.pk for gpu in known.values() if gpu.present and gpu.uuid not in said]:
        Gpu.objects.filter(pk__in=gone).update(present=False)
    facts = _facts_of(hello)
    if any(getattr(node, name) != value for name, value in facts.items()):
        return node.change(last_seen_at=timezone.now(), **facts)
    # A reconnecting fleet mostly repeats known facts.
    Node.objects.filter(pk=node.pk).update(last_seen_at=timezone.now())
    return node


def _facts_of(hello: wire.Hello) -> dict[str, Any]:
    """Return the node's fields that the hello says."""
    return {
        "agent_version": hello.agent_version,
        "driver_version": hello.driver_version,
        "hostname": hello.hostname,
        "run_dir": hello.run_dir,
        "library": hello.library,
        "kubernetes_node": hello.kubernetes_node or "",
        "dra": hello.dra is True,
        "simulated": hello.simulated,
        "arbiter": hello.arbiter,
        "backends": [] if hello.backends is msgspec.UNSET else sorted(hello.backends),
        "can_suspend": hello.suspend is True,
        "can_move": hello.move is True,
        "can_restart": hello.restart is True,
        "can_carry": hello.carry is True,
        "jobs": hello.jobs is True,
        "images": hello.images is True,
        "shared_instances": hello.shared_instances is True,
        "remote": None if hello.remote is msgspec.UNSET else msgspec.to_builtins(hello.remote),
        "lends_memory": hello.lends_memory is True,
        "host_memory_mib": 0 if hello.host_memory_bytes is msgspec.UNSET else hello.host_memory_bytes // MIB,
        "checks": msgspec.to_builtins(hello.checks),
    }


@compiled_query
def _lock_gpus(node_id: Any) -> QuerySet[Gpu]:
    return Gpu.objects.select_for_update().filter(node=node_id).order_by("pk")


@compiled_query
def _lock_node(node_id: Any) -> QuerySet[Node]:
    return Node.objects.select_for_update().filter(pk=node_id)


def _take_over(node: Node, uuids: Iterable[str]) -> dict[str, Gpu]:
    """Move GPUs of forgotten nodes, which hold nothing, to this node. Raises GpuElsewhere for those of other nodes."""
    foreign = list(Gpu.objects.select_for_update().filter(uuid__in=uuids).order_by("pk"))
    owners = Node.objects.in_bulk([gpu.node_id for gpu in foreign])
    for gpu in foreign:
        owner = owners[gpu.node_id]
        if owner.last_seen_at is not None:
            raise GpuElsewhere(_advise(gpu, owner), node=owner.name)
        gpu.node = node
        gpu.save(update_fields=["node"])
        before, after = {"node": owner.name}, {"node": node.name}
        audit.record(Principal(name=f"agent:{node.name}"), "gpu.move", gpu, before=before, after=after)
    return {gpu.uuid: gpu for gpu in foreign}


def _advise(gpu: Gpu, owner: Node) -> str:
    """Return how the GPU can come to another node; the advice first, because a close code's reason is cut off."""
    stop = f"Stop the agent of node {owner.name}, then run" if owner.online else "Run"
    return f"{stop} `gpucloud node forget {owner.name}`: {gpu.uuid} is still a GPU of that node."


def _take_gpu(node: Node, said: wire.Gpu, known: Gpu | None) -> None:
    """Write the GPU if it changed: a reconnecting fleet mostly repeats known facts."""
    facts = {
        "index": said.index,
        "model": said.model,
        # Never below the allocations: a driver that reserves more takes nothing from running claims.
        "memory_mib": max(mig.memory_mib_of(said), known.memory_used_mib if known else 0),
        "links": said.links,
        "mig": mig.facts_of(said),
        "present": True,
    }
    if known is None or any(getattr(known, name) != value for name, value in facts.items()):
        Gpu.objects.update_or_create(uuid=said.uuid, node=node, defaults=facts)
