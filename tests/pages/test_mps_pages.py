"""Pages of claims and GPUs under MPS: the programs that lost their GPU together."""

import re
from typing import Any

from agent import wire
from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.scheduling.gateway import Gateway
from apps.scheduling.services.claims.sharing import change_pool
from tests.cast import Cast, Machine, give_plenty, placed
from tests.pages.conftest import SignIn


def text(answer: Any) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", answer.content.decode()).split())


def test_pages_say_which_claims_fell_with_which_and_other_tenants_are_only_counted(cast: Cast, browser: SignIn) -> None:
    give_plenty(cast.acme, cast.globex)
    machine = Machine("gpu7", cast.pool, backends=["mps"]).stay_online()
    change_pool(principal=SYSTEM, pool=cast.pool, backend="mps", mps_group="pool")
    cast.pool.refresh_from_db()
    rows = [placed(cast, machine, name=name)[1] for name in ("first", "second")]
    other, _ = placed(cast, machine, name="foreign", tenant=cast.globex)
    gpu, fallen = rows[0].gpu, [str(row.claim.uid) for row in rows] + [str(other.uid)]
    detail = f"The MPS server (process 7) of all tenants on {gpu.uuid} has ended. Programs of {', '.join(fallen)}"
    stranger = "00000000-0000-4000-8000-000000000000"
    event = wire.Event(at=1.0, code="mps-server-ended", detail=detail, fallen=[*fallen, stranger])
    Gateway().event(machine.node, event)
    page = text(browser("max").get(f"/claims/{rows[0].claim.uid}/"))
    assert "The MPS server of the programs ended" in page
    assert "Claims that fell with it: second" in page
    assert "1 claim of another tenant fell, too" in page
    assert "foreign" not in page
    assert "2 claims of other tenants fell, too" in text(browser("olga").get(f"/claims/{other.uid}/"))
    page = text(browser("olga").get(f"/gpus/{gpu.uuid}/"))
    assert "of all tenants on" in page
    assert f"Programs of {rows[0].claim}, {rows[1].claim}" in page
    assert AuditEvent.objects.filter(action="claim.fall").count() == 3
    Gateway().event(machine.node, wire.Event(at=2.0, code="mps-daemon-ended", detail="Nobody."))
    assert AuditEvent.objects.filter(action="claim.fall").count() == 3
