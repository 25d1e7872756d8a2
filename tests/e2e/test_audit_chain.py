"""The sealer on a running platform: events of the API are in the chain a moment later, in their order."""

import re
import uuid
from typing import Any

import pytest

from tests.platform import Platform, until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(180)]

# The sealer runs every two seconds; a busy machine may need more.
SEALED_SECONDS = 30.0


def test_what_was_done_is_sealed_soon_and_in_its_order(platform: Platform) -> None:
    slugs = [f"seal-{uuid.uuid4().hex[:8]}" for _ in range(3)]
    for slug in slugs:
        platform.granted("POST", "tenants/", {"slug": slug})

    def sealed() -> list[Any]:
        rows = [platform.granted("GET", f"audit/?object_type=tenant&object_id={slug}")["results"][0] for slug in slugs]
        return rows if all(row["digest"] for row in rows) else []

    rows = until(sealed, seconds=SEALED_SECONDS, what="three events to be sealed")
    positions = [row["position"] for row in rows]
    assert positions == sorted(positions)
    assert len({row["digest"] for row in rows}) == 3
    log = platform.state / "logs" / "worker.log"

    def logged() -> bool:
        heads = re.findall(r"audit log sealed to (\d+):[0-9a-f]{64}", log.read_text())
        return any(int(at) >= positions[-1] for at in heads)

    until(logged, seconds=SEALED_SECONDS, what="the worker to log the head, for whoever keeps logs elsewhere")
