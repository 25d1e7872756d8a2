"""Preemption of a borrower: its program is ended after a notice, its claim waits, and runs again under the same uid."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.claims import Claims
from tests.platform import Platform, until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(180)]


@pytest.fixture
def both(platform: Platform, tmp_path: Path) -> Iterator[tuple[Claims, Claims]]:
    """Create a cohort: a tenant that lends 30 and one that has nothing, in a pool with a second of grace."""
    platform.granted("PATCH", "pools/default/", {"preemption_grace_seconds": 1})
    lender, borrower = Claims(platform, tmp_path), Claims(platform, tmp_path)
    for claims, core in ((lender, 30), (borrower, 0)):
        platform.granted("PATCH", f"tenants/{claims.tenant}/", {"cohort": f"of-{lender.tenant}"})
        for quota in platform.granted("GET", f"quotas/?tenant={claims.tenant}&resource=core_percent")["results"]:
            platform.granted("PATCH", f"quotas/{quota['id']}/", {"hard": core}, If_Match=f'"{quota["version"]}"')
    try:
        yield lender, borrower
    finally:
        platform.granted("PATCH", "pools/default/", {"preemption_grace_seconds": 30})
        lender.end()
        borrower.end()


def test_a_borrowers_program_ends_and_its_claim_comes_back(both: tuple[Claims, Claims]) -> None:
    lender, borrower = both

    def becomes(claims: Claims, uid: str, state: str) -> Any:
        return until(lambda: claims.read(uid)["state"] == state, what=f"{uid} to be {state}")

    uid = borrower.ask(core_request=30)["uid"]
    program, _ = borrower.run(uid)
    wanted = lender.ask(wait=0, core_request=20, when_over_quota="wait")["uid"]
    until(lambda: borrower.read(uid)["preempt_at"], what="the notice")
    becomes(borrower, uid, "queued")
    program.wait(5)  # it was told to end, and did
    becomes(lender, wanted, "active")
    assert (borrower.read(uid)["assignments"], borrower.read(uid)["preempt_at"]) == ([], None)

    lender.platform.granted("DELETE", f"claims/{wanted}/?wait=30")
    becomes(borrower, uid, "active")
    again, echo = borrower.run(uid)
    assert again.poll() is None
    assert echo.gpu_time_ns() > 0
