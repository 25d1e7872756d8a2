"""The setup of the demo's platform through the services that everybody uses.

Safe to repeat; it resumes what is there.
"""

import json
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from django.conf import settings

from apps.demo.platform import CLAIMS, POOLS, TENANTS
from apps.nodes.models import Node
from apps.nodes.services.nodes import create_node, renew_enrolment
from apps.quotas.models import Pool, Resource, Role, Tenant, User
from apps.quotas.principals import SYSTEM
from apps.quotas.services import quotas, tenants, tokens
from apps.scheduling.models import Claim, ClaimState
from apps.scheduling.services.claims.environment import claim_environment
from apps.scheduling.services.claims.lifecycle import create_claim
from apps.scheduling.services.claims.spec import ClaimSpec

OPERATOR, MEMBER = "operator", "member"
WORKLOADS_SECONDS = 30.0
GPULOAD = settings.BASE_DIR / "libvcuda" / "build" / "gpuload"


def seed(*, state_dir: Path, default_nodes: Sequence[str]) -> None:
    """Create tenants, quotas, pools, nodes and the operator; secrets go to files of mode 0600 in `state_dir`."""
    operator(state_dir)
    pools = {
        name: Pool.objects.filter(name=name).first()
        or tenants.create_pool(principal=SYSTEM, name=name, description=text, jobs=True)
        for name, text in POOLS.items()
    }
    for slug, (name, core, memory_mib, vgpus) in TENANTS.items():
        if not Tenant.objects.filter(slug=slug).exists():
            tenant = tenants.create_tenant(principal=SYSTEM, slug=slug, name=name)
            amounts = {Resource.CORE_PERCENT: core, Resource.MEMORY_MIB: memory_mib, Resource.VGPUS: vgpus}
            for resource, hard in amounts.items():
                quotas.create_quota(principal=SYSTEM, tenant=tenant, pool=None, resource=resource, hard=hard)
    member(state_dir)
    for name in default_nodes:
        enrol_later(state_dir, name=name, pool=pools["default"])
    enrol_later(state_dir, name="sim-2", pool=pools["shared"])
    for item in CLAIMS:
        tenant = Tenant.objects.get(slug=item.tenant)
        # A claim that was released stays released: the next start resumes, it does not start over.
        if not Claim.objects.filter(tenant=tenant, name=item.name, pool=pools["shared"]).exists():
            create_claim(
                principal=SYSTEM,
                spec=ClaimSpec(
                    tenant=tenant,
                    pool=pools["shared"],
                    name=item.name,
                    gpu_count=item.gpu_count,
                    core_request=item.core_request,
                    core_limit=item.core_limit,
                    memory_mib=item.memory_mib,
                ),
            )


def operator(state_dir: Path) -> None:
    """Create the operator's login and token; both survive restarts."""
    user = login(state_dir, OPERATOR, is_operator=True)
    token_file = state_dir / "operator.token"
    if not token_file.exists() or tokens.find(token_file.read_text().strip(), source_ip=None) is None:
        _, text = tokens.create(principal=SYSTEM, name="demo operator", tenant=None, user=user)
        write_secret(token_file, text)


def login(state_dir: Path, name: str, **facts: Any) -> User:
    """Create a user with a password, which is written to a file."""
    user, created = User.objects.get_or_create(username=name, defaults=facts)
    password_file = state_dir / f"{name}.password"
    if created or not password_file.exists():
        password = secrets.token_urlsafe(12)
        user.set_password(password)
        user.save()
        write_secret(password_file, password)
    return user


def member(state_dir: Path) -> None:
    """Create the login of a member of the first tenant."""
    user, tenant = login(state_dir, MEMBER), Tenant.objects.get(slug=next(iter(TENANTS)))
    if not user.memberships.exists():
        tenants.set_member(principal=SYSTEM, tenant=tenant, user=user, role=Role.MEMBER)


def enrol_later(state_dir: Path, *, name: str, pool: Pool) -> None:
    """Create the node, and a one-time token for its agent until that has enrolled.

    The token is in the agent's own directory, which may be a volume of its own. An agent whose directory was lost, and
    its key with it, gets another token.
    """
    node = Node.objects.filter(name=name).first()
    path = state_dir / "nodes" / name / "enrol.token"
    if node is not None and node.enrolled_at is not None and path.with_name("agent.json").exists():
        path.unlink(missing_ok=True)
        return
    if node is None:
        _, token = create_node(principal=SYSTEM, name=name, pool=pool)
    else:
        _, token = renew_enrolment(principal=SYSTEM, node=node)
    write_secret(path, token)


def write_secret(path: Path, text: str) -> None:
    """Write the text to a file that only its owner may read, whole or not at all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")
    fresh.replace(path)


def workloads() -> Iterator[str]:
    """Yield a line of JSON per seeded claim once it is active: the program to start, and its secret."""
    programs = {(item.tenant, item.name): item.program for item in CLAIMS}
    started: set[int] = set()
    deadline = time.monotonic() + WORKLOADS_SECONDS
    while time.monotonic() < deadline:
        live = Claim.objects.filter(pool__name="shared", tenant__slug__in=TENANTS).exclude(state=ClaimState.RELEASED)
        waiting = [claim for claim in live.select_related("tenant") if claim.pk not in started]
        waiting = [claim for claim in waiting if (claim.tenant.slug, claim.name) in programs]
        for claim in waiting:
            if claim.state == ClaimState.ACTIVE:
                started.add(claim.pk)
                yield _workload(claim, programs[claim.tenant.slug, claim.name])
        if all(claim.pk in started for claim in waiting):
            return
        time.sleep(0.2)


def _workload(claim: Claim, program: tuple[str, ...]) -> str:
    facts = claim_environment(principal=SYSTEM, claim=claim)
    return json.dumps(
        {
            "claim": str(claim.uid),
            "secret": facts["secret"],
            "agent_socket": facts["agent_socket"],
            "command": [str(GPULOAD), *program],
        }
    )
