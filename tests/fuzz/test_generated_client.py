"""A Python client generated from the OpenAPI document, used as any program would use it."""

import contextlib
import hashlib
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from apps.nodes.models import Node
from apps.scheduling.services.cycles.rounds import run_round
from tests.fuzz.conftest import Server

# The server sees committed rows only.
pytestmark = [pytest.mark.serial, pytest.mark.django_db(transaction=True)]
DOCUMENT = Path(settings.BASE_DIR) / "docs" / "openapi.yaml"
PACKAGE = "gpucloud_client"


@pytest.fixture(scope="module")
def package() -> Iterator[str]:
    """Return the client's package, importable; regenerated when the document has changed."""
    digest = hashlib.sha256(DOCUMENT.read_bytes()).hexdigest()[:16]
    home = Path(settings.BASE_DIR) / ".cache" / f"client-{digest}"
    if not (home / PACKAGE / "client.py").exists():
        tools = Path(sys.executable).parent
        generated = subprocess.run(
            [
                str(tools / "openapi-python-client"), "generate", "--path", str(DOCUMENT), "--meta", "none",
                "--output-path", str(home / PACKAGE), "--overwrite", "--fail-on-warning",
            ],
            env=os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert generated.returncode == 0, generated.stdout + generated.stderr
    sys.path.insert(0, str(home))
    yield PACKAGE
    sys.path.remove(str(home))
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


class Client:
    """The generated operations, for one token."""

    def __init__(self, package: str, client: Any) -> None:
        self._package, self._client = package, client

    def operation(self, group: str, name: str) -> Callable[..., Any]:
        """Call an operation that must succeed; return status, headers and the parsed body."""
        module = importlib.import_module(f"{self._package}.api.{group}.{name}")

        def call(*path: Any, **arguments: Any) -> Any:
            answer = module.sync_detailed(*path, client=self._client, **arguments)
            assert 200 <= answer.status_code < 300, answer.content
            return SimpleNamespace(status=int(answer.status_code), headers=answer.headers, body=answer.parsed)

        return call


@pytest.fixture
def sign_in(package: str, server: Server) -> Iterator[Callable[[str], Client]]:
    """Return a client for a token; close its connections at the end."""
    made = importlib.import_module(package).AuthenticatedClient
    with contextlib.ExitStack() as stack:
        yield lambda token: Client(
            package,
            stack.enter_context(made(base_url=server.url, token=token, raise_on_unexpected_status=True)),
        )


def test_a_program_made_from_the_document_lives_through_a_claim(
    server: Server, package: str, sign_in: Callable[[str], Client]
) -> None:
    models: Any = importlib.import_module(f"{package}.models")
    operator = sign_in(server.token)
    ci = sign_in(new_tenant(operator, models))
    create = ci.operation("claims", "claims_create")
    asked = models.ClaimRequest(tenant="hooli", core_request=30, memory_mib=2048, name="train")
    claim = create(body=asked, idempotency_key="pipeline-17").body
    assert (claim.state, claim.core_limit) == (models.ClaimState.PENDING, 30)
    assert create(body=asked, idempotency_key="pipeline-17").body.uid == claim.uid

    machine = server.platform.machine
    # Its hello is as old as the server, which took its time to start.
    Node.objects.filter(pk=machine.node.pk).update(last_seen_at=timezone.now())
    run_round(server.platform.cast.pool)
    machine.obey()
    show = ci.operation("claims", "claims_retrieve")
    active = show(claim.uid).body
    assert (active.state, [piece.node for piece in active.assignments]) == (models.ClaimState.ACTIVE, ["gpu1"])

    resize = models.PatchedResizeRequest(core_limit=60)
    grown = ci.operation("claims", "claims_partial_update")(claim.uid, body=resize)
    assert (grown.body.core_limit, grown.body.generation) == (60, 2)
    assert grown.headers["ETag"] == f'"{grown.body.version}"'

    released = ci.operation("claims", "claims_release_create")(claim.uid)
    assert (released.status, released.body.state) == (202, models.ClaimState.RELEASING)
    machine.obey()
    assert show(claim.uid).body.state == models.ClaimState.RELEASED
    quota, *others = quotas_of_hooli(operator)
    assert {quota.used for quota in (quota, *others)} == {0}
    lower, tag = models.PatchedQuotaChangeRequest(hard=50), f'"{quota.version}"'
    changed = operator.operation("quotas", "quotas_partial_update")(quota.id, body=lower, if_match=tag)
    assert changed.body.hard == 50


def new_tenant(operator: Client, models: Any) -> str:
    """Create a tenant with quotas; return the text of a member's token."""
    operator.operation("tenants", "tenants_create")(body=models.TenantRequest(slug="hooli"))
    for resource, hard in {"core_percent": 100, "memory_mib": 4096}.items():
        quota = models.QuotaRequest(tenant="hooli", resource=resource, hard=hard)
        operator.operation("quotas", "quotas_create")(body=quota)
    asked = models.TokenRequest(name="ci", tenant="hooli", role=models.MemberRole.MEMBER)
    return str(operator.operation("tokens", "tokens_create")(body=asked).body.token)


def quotas_of_hooli(operator: Client) -> Any:
    return operator.operation("quotas", "quotas_list")(tenant="hooli").body.results
