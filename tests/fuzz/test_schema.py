"""Schemathesis against a live server: every operation of the OpenAPI document, with valid and invalid requests.

No answer is a 5xx; every status, content type, header and body conforms to the document; forbidden input is refused and
allowed input is not refused for its form; requests without a token are refused.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings

from tests.fuzz.conftest import Server

# The database is the server's: the tests' own transaction stays empty.
pytestmark = [pytest.mark.serial, pytest.mark.django_db]
PROGRAM = Path(sys.executable).with_name("schemathesis")
CONFIGURATION = Path(__file__).with_name("schemathesis.toml")
DOCUMENT = Path(settings.BASE_DIR) / "docs" / "openapi.yaml"
# The few are the same each time, and omit the thousands of combinations of each value's bounds; the many search for new
# ones.
FEW = ["--generation-deterministic", "--phases", "examples,fuzzing,stateful"]
MANY = ["--generation-database", "none"]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("examples", "options"), [(1, FEW), pytest.param(200, MANY, marks=pytest.mark.long)], ids=["few", "many"]
)
def test_every_operation_answers_as_documented(
    server: Server, tmp_path: Path, examples: int, options: list[str]
) -> None:
    fuzz = subprocess.run(
        [
            str(PROGRAM), "--config-file", str(CONFIGURATION), "run", str(DOCUMENT), "--url", server.url,
            "--header", f"Authorization: Bearer {server.token}", "--max-examples", str(examples),
            "--no-color", "--continue-on-failure", *options,
        ],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert fuzz.returncode == 0, fuzz.stdout + fuzz.stderr
