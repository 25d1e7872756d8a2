"""The new claim's page: free quota, GPU models, cost, presets, waiting and asking for more."""

from datetime import date
from decimal import Decimal
from html import unescape
from typing import Any

import pytest

from apps.quotas.models import Pool, Price, ResourceQuota
from apps.scheduling.models import Claim
from tests.cast import Cast, Machine
from tests.pages.conftest import SignIn

GIB = 1024
NEW = {
    "tenant": "acme", "name": "train-7", "pool": "default", "gpu_count": "1", "core_request": "25",
    "memory_mib": "4 GiB",
}  # fmt: skip
PATH = "/claims/new/"


def text(answer: Any) -> str:
    return " ".join(unescape(answer.content.decode()).split())


def limit(cast: Cast, **amounts: int) -> None:
    for resource, hard in amounts.items():
        ResourceQuota.objects.get(tenant=cast.acme, resource=resource).change(hard=hard)


def estimate(reader: Any, **values: str) -> str:
    answer = reader.post(PATH, NEW | {"act": "estimate"} | values, headers={"HX-Request": "true"})
    assert answer.status_code == 200
    assert "<html" not in answer.content.decode()
    assert not Claim.objects.exists()
    return text(answer)


def test_the_free_quota_and_the_gpus_are_on_the_form(cast: Cast, machine: Machine, browser: SignIn) -> None:
    limit(cast, core_percent=150, memory_mib=64 * GIB)
    gpu = machine.gpu()
    page = text(browser("max").get(f"{PATH}?tenant=acme"))
    for words in ("150 %", "64 GiB", gpu.model, "Each hour is charged as 0.25 GPU-hours."):
        assert words in page


def test_the_estimate_follows_what_is_typed(cast: Cast, machine: Machine, browser: SignIn) -> None:
    limit(cast, core_percent=50, memory_mib=64 * GIB)
    max_ = browser("max")
    assert "Wait in queue" not in estimate(max_, core_request="50")
    assert "Wait in queue" in estimate(max_, core_request="51")
    limit(cast, core_percent=60)
    assert "Wait in queue" not in estimate(max_, core_request="51")
    # Wrong values are no reason to fail: their line has no amount.
    assert "Available to acme in pool default" in estimate(max_, core_request="many", memory_mib="")
    assert "Available" not in estimate(browser("gus"), core_request="50")
    assert "Available" not in estimate(max_, pool="missing")


def test_how_many_gpus_it_fits_on_now(cast: Cast, machine: Machine, browser: SignIn) -> None:
    gpu, max_ = machine.gpu(), browser("max")
    whole = type(gpu).objects.count()
    assert f"{whole} of {whole} GPU" in estimate(max_, core_request="100", memory_mib=f"{gpu.memory_mib} MiB")
    type(gpu).objects.update(memory_used_mib=1)
    assert f"0 of {whole} GPU" in estimate(max_, core_request="100", memory_mib=f"{gpu.memory_mib} MiB")
    type(gpu).objects.update(core_used=60)
    assert f"0 of {whole} GPU" in estimate(max_, core_request="41")
    assert f"{whole} of {whole} GPU" in estimate(max_, core_request="40")


def test_the_cost_of_an_hour_before_submit(cast: Cast, machine: Machine, browser: SignIn) -> None:
    model = machine.gpu().model
    day = date(2020, 1, 1)
    Price.objects.create(gpu_model=model, valid_from=day, per_gpu_hour=Decimal("3.2"))
    assert ">0.80<" in estimate(browser("max"), core_request="25")
    Price.objects.create(gpu_model=model, pool=cast.pool, valid_from=day, per_gpu_hour=Decimal(2))
    assert ">1.00<" in estimate(browser("max"), core_request="50")


def test_presets_are_parts_of_the_pools_gpus(cast: Cast, machine: Machine, browser: SignIn) -> None:
    size = machine.gpu().memory_mib
    for key, core, memory in (("third", 33, size // 3), ("whole", 100, size)):
        answer = browser("max").post(PATH, NEW | {"preset": key, "name": "mine", "data": "x"})
        form = answer.context["form"]
        assert (answer.status_code, form.is_bound) == (200, False)
        assert (form["name"].value(), int(form["core_request"].value())) == ("mine", core)
        assert form["memory_mib"].value() in (f"{memory // GIB} GiB", f"{memory} MiB")
    assert browser("max").post(PATH, NEW | {"preset": "none"}).context["form"]["core_request"].value() == "25"
    Pool.objects.create(name="empty")
    assert "⅓ GPU" not in estimate(browser("max"), pool="empty")
    assert not Claim.objects.exists()


def test_over_quota_it_waits_if_one_says_so(cast: Cast, machine: Machine, browser: SignIn) -> None:
    limit(cast, core_percent=20, memory_mib=64 * GIB)
    max_ = browser("max")
    refused = max_.post(PATH, NEW | {"act": "apply"})
    assert refused.status_code == 422
    assert "Wait in queue" in text(refused)
    assert 'value="train-7"' in text(refused)
    assert not Claim.objects.exists()
    page = text(max_.post(PATH, NEW | {"act": "wait"}, follow=True))
    claim = Claim.objects.get()
    assert (claim.state, claim.when_over_quota, claim.charged_vgpus) == ("pending", "wait", 0)
    assert "waits in the queue until there is quota for it" in page


@pytest.mark.parametrize(("resource", "amount"), [("core_percent", "5"), ("memory_mib", "1 GiB")])
def test_the_missing_amount_is_in_the_request(
    cast: Cast, machine: Machine, browser: SignIn, resource: str, amount: str
) -> None:
    limit(cast, **{resource: {"core_percent": 20, "memory_mib": 3 * GIB}[resource]})
    page = text(browser("anna").post(PATH, NEW))
    link = page.split('href="/requests/new/')[1].split('"')[0]
    form = browser("anna").get(f"/requests/new/{link}").context["form"]
    assert (form["resource"].value(), form["amount"].value(), form["tenant"].value()) == (resource, amount, "acme")
