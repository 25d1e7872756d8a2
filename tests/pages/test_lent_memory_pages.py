"""A claim that borrows memory on the pages: made, shown, changed, and refused in words."""

import pytest
from django.test import Client
from django.utils import timezone

from apps.nodes.models import Sample
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import GIB, MIB_BYTES, Cast, Machine, give_plenty, placed
from tests.measurements import keep
from tests.pages.conftest import SignIn

SIZE = {"tenant": "acme", "name": "sweep", "pool": "default", "gpu_count": "1", "core_request": "10", "weight": "1"}


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme)
    change_pool(principal=SYSTEM, pool=cast.pool, lend_memory=True, sharing_policy="preempt")
    return Machine("gpu1", cast.pool, host_memory_mib=64 * GIB).stay_online()


@pytest.fixture
def max_(browser: SignIn) -> Client:
    return browser("max")


def text(answer: object) -> str:
    return " ".join(answer.content.decode().split())  # type: ignore[attr-defined]


def make(cast: Cast, machine: Machine, max_: Client) -> Claim:
    asked = {**SIZE, "memory_mib": "2 GiB", "memory_limit_mib": "12 GiB", "best_effort": "on"}
    assert max_.post("/claims/new/", asked).status_code == 302
    run_round(cast.pool)
    machine.obey()
    return Claim.objects.get()


def test_it_is_made_shown_and_changed(cast: Cast, machine: Machine, max_: Client) -> None:
    claim = make(cast, machine, max_)
    shown = text(max_.get(f"/claims/{claim.uid}/"))
    assert "12 GiB, 2 GiB of it promised" in shown
    assert "of 12 GiB" in shown, "what it uses is compared with what it may use"
    form = max_.get(f"/claims/{claim.uid}/sharing/").context["form"]
    sent = {name: form[name].value() for name in form.fields} | {"memory_limit_mib": "16 GiB"}
    sent = {name: value for name, value in sent.items() if value not in (None, False)}
    answer = max_.post(f"/claims/{claim.uid}/sharing/", sent, follow=True)
    assert "memory limit 12288 → 16384 MiB" in text(answer)
    claim.refresh_from_db()
    assert claim.memory_limit_mib == 16 * GIB


def measure(claim: Claim) -> None:
    """Store a second in which 3 GiB of the claim are borrowed and 4 are in host memory."""
    (item,) = claim.assignments.all()
    moved: dict[str, float] = {"borrowed_bytes": 3 * GIB * MIB_BYTES, "memory_out_bytes": 4 * GIB * MIB_BYTES}
    moved |= {"moved_bytes_per_second": 512.0 * MIB_BYTES, "stood_percent": 1.5}
    used = {"core_percent": 5, "memory_bytes": 5 * GIB * MIB_BYTES, "at": timezone.now()}
    of_gpu = Sample(gpu_id=item.gpu_id, borrowed_bytes=3 * GIB * MIB_BYTES, **used)
    keep([Sample(assignment_uid=item.uid, **moved, **used), of_gpu])


def test_its_chart_has_bands_and_that_of_others_has_none(cast: Cast, machine: Machine, max_: Client) -> None:
    claim = make(cast, machine, max_)
    other, _ = placed(cast, machine, core_request=10)
    measure(claim)
    assert 'data-chart="borrowed-memory"' in text(max_.get(f"/claims/{claim.uid}/"))
    assert 'data-chart="borrowed-memory"' not in text(max_.get(f"/claims/{other.uid}/"))
    (series,) = max_.get(f"/claims/{claim.uid}/series/").json()["series"]
    names = ("memory_mib", "borrowed_mib", "memory_out_mib", "moved_mib_per_second", "stood_percent")
    assert [series[name] for name in names] == [[5 * GIB], [3 * GIB], [4 * GIB], [512], [1.5]]
    (series,) = max_.get(f"/claims/{other.uid}/series/").json()["series"]
    assert "borrowed_mib" not in series


def test_the_charts_of_a_gpu_and_its_node_have_what_is_lent(
    cast: Cast, machine: Machine, max_: Client, browser: SignIn
) -> None:
    claim = make(cast, machine, max_)
    measure(claim)
    gpu = claim.assignments.get().gpu
    olga = browser("olga")
    for address in (f"/gpus/{gpu.uuid}/series/", "/nodes/gpu1/series/"):
        found = {one["key"]: one.get("borrowed_mib") for one in olga.get(address).json()["series"]}
        assert found[gpu.uuid] == [3 * GIB], address
    assert 'data-chart="borrowed-memory"' in text(olga.get(f"/gpus/{gpu.uuid}/"))


def test_the_page_says_while_memory_stands_aside(cast: Cast, machine: Machine, max_: Client) -> None:
    claim = make(cast, machine, max_)
    address = f"/claims/{claim.uid}/"
    assert "Memory stands aside" not in text(max_.get(address))
    claim.assignments.update(memory_out_mib=4 * GIB, memory_out_since=timezone.now())
    shown = text(max_.get(address))
    assert "gpu1 GPU 0: 4 GiB of what the claim borrowed are in host memory" in shown


def test_a_refusal_is_said_in_the_form(cast: Cast, machine: Machine, max_: Client) -> None:
    answer = max_.post("/claims/new/", {**SIZE, "memory_mib": "2 GiB", "memory_limit_mib": "12 GiB"})
    assert "Only best-effort claims borrow memory" in text(answer)
    assert not Claim.objects.exists()
