"""The webhooks over real TLS: a certificate of ours, a client that trusts only its authority."""

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from apps.clusters.admission import certificates
from apps.clusters.admission.handler import MOST_BYTES
from tests.clusters.admission.asking import review
from tests.clusters.admission.serving import serve
from tests.clusters.formats.pods import container_with, pod


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Return a client of a listener that serves on this machine for the module's tests."""
    directory: Path = tmp_path_factory.mktemp("tls")
    certificates.rotate(directory, ["127.0.0.1"], now=datetime.now(UTC))
    with serve(directory) as url:
        trust = ssl.create_default_context(cafile=str(directory / "ca-bundle.crt"))
        with httpx.Client(base_url=url, verify=trust) as found:
            yield found


def test_a_question_is_answered(client: httpx.Client) -> None:
    answer = client.post("/admission/validate?timeout=5s", content=review(pod(container_with(core=150))))
    assert answer.status_code == 200
    assert "multiple of 100" in answer.json()["response"]["status"]["message"]


def test_settings_are_the_policy(client: httpx.Client, settings: object) -> None:
    asked = review(pod(container_with(core=30)))
    assert "patch" not in client.post("/admission/mutate", content=asked).json()["response"]
    settings.ADMISSION_DEFAULT_MEMORY_MIB = 512  # type: ignore[attr-defined]
    assert client.post("/admission/mutate", content=asked).json()["response"]["patchType"] == "JSONPatch"


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("POST", "/admission/validate", b"{}", 400),
        ("POST", "/admission/validate", b"x" * (MOST_BYTES + 1), 413),
        ("GET", "/admission/validate", b"", 405),
        ("POST", "/admission/", b"{}", 404),
    ],
)
def test_what_is_no_question_is_a_problem(
    client: httpx.Client, method: str, path: str, content: bytes, status: int
) -> None:
    answer = client.request(method, path, content=content)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
