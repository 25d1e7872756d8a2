"""The health of GPUs: stored as the agent reports it, shown to operators, in the API and in metrics."""

import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agent import wire
from apps.nodes.models import GpuHealth
from apps.scheduling.gateway import Gateway
from tests.cast import Cast, Machine, gpu_uuid, placed
from tests.pages.conftest import SignIn

FULL: dict[str, Any] = {
    "temperature_celsius": 61.0,
    "ecc_corrected": 12,
    "ecc_uncorrected": 0,
    "sm_active_percent": 87.4,
    "tensor_active_percent": 31.2,
    "dram_active_percent": 44.0,
}


def process(pid: int, *, gpu: int = 0, claim: str | None = None, **facts: Any) -> wire.GpuProcess:
    facts = {"command": "python", "memory_bytes": 512 << 20, **facts}
    return wire.GpuProcess(pid=pid, gpu_uuid=gpu_uuid("gpu1", gpu), claim_uid=claim, **facts)


def report(machine: Machine, *processes: wire.GpuProcess, index: int = 0, **facts: Any) -> None:
    """Report one GPU of the machine as its agent does."""
    gpus = [wire.GpuHealth(uuid=gpu_uuid(machine.name, index), **facts)]
    Gateway().health(machine.node, wire.Health(at=time.time(), gpus=gpus, processes=list(processes)))


def test_the_api_shows_the_latest_report_and_null_where_a_card_has_no_reading(cast: Cast, machine: Machine) -> None:
    assert cast.olga.get(f"gpus/{machine.gpu().uuid}/").body["health"] is None
    report(machine, **FULL)
    version = machine.gpu().version
    report(machine, **FULL | {"temperature_celsius": 64.0}, last_xid=31, last_xid_at=1_790_000_000.0)
    shown = cast.vera.get(f"gpus/{machine.gpu().uuid}/").body["health"]
    assert {name: shown[name] for name in FULL} == FULL | {"temperature_celsius": 64.0}
    assert (shown["last_xid"], shown["last_xid_at"][:10]) == (31, "2026-09-21")
    # A restarted agent does not know the error any more: it stays.
    report(machine, temperature_celsius=50.0)
    shown = cast.olga.get(f"gpus/{machine.gpu().uuid}/").body["health"]
    assert shown["last_xid"] == 31
    assert shown["ecc_corrected"] is shown["sm_active_percent"] is None
    # No write of the GPU's row: it would wake the scheduler each time.
    assert machine.gpu().version == version
    listed = cast.olga.get("gpus/").body["results"]
    assert sorted(row["index"] for row in listed if row["health"] is not None) == [0]


def test_a_report_costs_the_same_queries_whatever_there_is(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    counts = []
    for number in (1, 4):
        gpus = [wire.GpuHealth(uuid=gpu_uuid("gpu1", index), **FULL) for index in range(number)]
        processes = [process(4000 + index, claim=str(claim.uid)) for index in range(number * 10)]
        with CaptureQueriesContext(connection) as asked:
            Gateway().health(machine.node, wire.Health(at=time.time(), gpus=gpus, processes=processes))
        counts.append(len(asked))
    assert counts[0] == counts[1] <= 5


def test_a_node_reports_its_own_gpus_only_and_no_impossible_heat(cast: Cast, machine: Machine) -> None:
    other = Machine("gpu2", cast.pool)
    stolen = wire.GpuHealth(uuid=gpu_uuid("gpu2", 0), temperature_celsius=20.0)
    Gateway().health(machine.node, wire.Health(at=0, gpus=[stolen], processes=[]))
    assert not GpuHealth.objects.filter(gpu=other.gpu()).exists()
    report(machine, temperature_celsius=5000.0, sm_active_percent=140.0)
    stored = GpuHealth.objects.get(gpu=machine.gpu())
    assert (stored.temperature_celsius, stored.sm_active_percent) == (None, 100.0)


def test_processes_are_listed_for_operators_with_the_claims_that_the_node_carries(
    cast: Cast, machine: Machine, browser: SignIn
) -> None:
    claim, item = placed(cast, machine)
    foreign = "00000000-0000-4000-8000-000000000000"
    facts: dict[str, Any] = {"index": item.gpu.index, **FULL}
    mine = process(4711, gpu=item.gpu.index, claim=str(claim.uid), command="train.py")
    report(machine, mine, process(4712, gpu=item.gpu.index, claim=foreign, memory_bytes=None), **facts)
    answer = cast.olga.get(f"gpus/{item.gpu.uuid}/processes/")
    assert answer.body["processes"] == [
        {"pid": 4711, "command": "train.py", "memory_mib": 512, "claim": str(claim.uid)},
        {"pid": 4712, "command": "python", "memory_mib": None, "claim": None},
    ]
    # Tenants: only their own.
    own = cast.anna.get(f"gpus/{item.gpu.uuid}/processes/").body["processes"]
    assert [one["pid"] for one in own] == [4711]
    assert cast.gus.get(f"gpus/{item.gpu.uuid}/processes/").body["processes"] == []
    seen = browser("max").get(f"/claims/{claim.uid}/").content.decode()
    assert "train.py" in seen
    assert "4712" not in seen
    page = browser("olga").get(f"/gpus/{item.gpu.uuid}/").content.decode()
    for words in ("train.py", "4711", "512 MiB", f'/claims/{claim.uid}/"', "No claim"):
        assert words in page
    assert '<td class="num">2</td>' in browser("olga").get("/nodes/gpu1/").content.decode()


def test_pages_say_not_available_where_a_card_has_no_reading_and_never_0(
    cast: Cast, machine: Machine, browser: SignIn
) -> None:
    report(machine, temperature_celsius=41.0)
    report(machine, index=1, **FULL, last_xid=94, last_xid_at=time.time() - 60, last_xid_cure="program")
    node = browser("olga").get("/nodes/gpu1/").content.decode()
    for words in ("41 °C", "61 °C", "87 %", "31 %", "44 %", "12 corrected", "XID 94"):
        assert words in node
    page = browser("olga").get(f"/gpus/{gpu_uuid('gpu1', 0)}/").content.decode()
    assert page.count("Not reported by this driver") == 4
    assert "No process uses it." in page
    assert "Check and restart the program" in browser("olga").get(f"/gpus/{gpu_uuid('gpu1', 1)}/").content.decode()
    assert "Not reported yet." in browser("olga").get(f"/gpus/{gpu_uuid('gpu1', 2)}/").content.decode()


def test_old_readings_show_their_age(cast: Cast, machine: Machine, browser: SignIn) -> None:
    report(machine, **FULL)
    page = browser("olga").get(f"/gpus/{machine.gpu().uuid}/").content.decode()
    assert "No newer report" not in page
    GpuHealth.objects.update(reported_at=timezone.now() - timedelta(minutes=3))
    assert "No newer report" in browser("olga").get(f"/gpus/{machine.gpu().uuid}/").content.decode()


@pytest.mark.parametrize("errors", [0, 3])
def test_uncorrectable_memory_errors_are_a_notice_until_the_driver_is_loaded_again(
    cast: Cast, machine: Machine, browser: SignIn, errors: int
) -> None:
    report(machine, index=2, **FULL | {"ecc_uncorrected": errors})
    page = browser("olga").get("/").content.decode()
    assert ("GPU 2 of gpu1 had 3 uncorrectable memory errors" in page) == bool(errors)


def test_the_scrape_has_the_readings_of_each_card_that_has_them(cast: Cast, machine: Machine) -> None:
    from tests.scheduling.scrapes import scrape

    report(machine, **FULL)
    report(machine, index=1, temperature_celsius=40.0)
    seen = scrape(cast.olga)

    def shown(name: str) -> dict[str, float]:
        return {dict(labels)["gpu"]: value for labels, value in seen.series(name).items()}

    assert shown("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL") == {"0": 12}
    assert shown("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL") == {"0": 0}
    assert shown("DCGM_FI_PROF_SM_ACTIVE") == {"0": pytest.approx(0.874)}
    assert shown("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE") == {"0": pytest.approx(0.312)}
    assert shown("DCGM_FI_PROF_DRAM_ACTIVE") == {"0": pytest.approx(0.44)}
    GpuHealth.objects.update(reported_at=timezone.now() - timedelta(minutes=3))
    assert "DCGM_FI_PROF_SM_ACTIVE" not in scrape(cast.olga).names()
