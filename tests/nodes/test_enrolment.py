"""Enrolment: a one-time token for a lasting key."""

from datetime import timedelta

import pytest
from django.utils import timezone

from apps.nodes.models import Node
from apps.nodes.services import nodes
from apps.quotas.models import AuditEvent
from tests.cast import Api, Cast
from tests.scheduling.routes import dump_database

KEY, OTHER = "1" * 64, "2" * 64


@pytest.fixture
def token(cast: Cast) -> str:
    answer = cast.olga.post("nodes/", {"name": "gpu1", "pool": "default"})
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.body["enrolment_token"] in answer.body["command"]
    return str(answer.body["enrolment_token"])


def enrol(cast: Cast, token: str, digest: str = KEY, who: Api | None = None) -> tuple[int, str]:
    answer = (who or cast.nobody).post("nodes/enrol/", {"token": token, "key_digest": digest})
    return answer.status, answer.body["node_name"] if answer.status == 200 else answer.code


def test_an_agent_enrols_once_without_a_token_of_the_api(cast: Cast, token: str) -> None:
    assert enrol(cast, token) == (200, "gpu1")


def test_the_audit_log_says_from_where(cast: Cast, token: str) -> None:
    enrol(cast, token, who=Api(REMOTE_ADDR="198.51.100.7"))
    assert AuditEvent.objects.get(action="node.enrol").source_ip == "198.51.100.7"


def test_the_same_key_may_come_again_because_an_answer_may_be_lost(cast: Cast, token: str) -> None:
    enrol(cast, token)
    before = dump_database()
    assert enrol(cast, token) == (200, "gpu1")
    assert dump_database() == before


def test_a_second_key_is_refused(cast: Cast, token: str) -> None:
    enrol(cast, token)
    before = dump_database()
    assert enrol(cast, token, OTHER) == (403, "enrolment-refused")
    assert dump_database() == before


@pytest.mark.parametrize("wrong", ["gpe_wrong", "x", "gpc_a.b", "gpe_" + "x" * 190])
def test_a_wrong_token_is_refused(cast: Cast, token: str, wrong: str) -> None:
    before = dump_database()
    assert enrol(cast, wrong) == (403, "enrolment-refused")
    assert dump_database() == before


def test_an_expired_token_is_refused(cast: Cast, token: str) -> None:
    Node.objects.update(enrolment_expires_at=timezone.now() - timedelta(seconds=1))
    before = dump_database()
    assert enrol(cast, token) == (403, "enrolment-refused")
    assert dump_database() == before


@pytest.mark.parametrize("digest", ["", "x" * 64, "1" * 63, "1" * 65, "A" * 64])
def test_a_key_digest_is_sixty_four_hexadecimal_digits(cast: Cast, token: str, digest: str) -> None:
    assert enrol(cast, token, digest) == (400, "invalid-fields")


def test_a_renewal_replaces_the_token_and_with_its_use_the_key(cast: Cast, token: str) -> None:
    enrol(cast, token)
    uid = Node.objects.get().uid
    renewed = cast.olga.post("nodes/gpu1/enrolment/").body["enrolment_token"]
    assert enrol(cast, token, KEY) == (403, "enrolment-refused")
    before = Node.objects.get().key_digest
    assert enrol(cast, renewed, OTHER) == (200, "gpu1")
    assert Node.objects.get().key_digest != before
    assert nodes.authenticate(credential=f"gpn_{uid}.anything") is None


def test_only_digests_are_kept(cast: Cast, token: str) -> None:
    enrol(cast, token)
    assert token not in str(dump_database())
    assert KEY not in str(dump_database())
