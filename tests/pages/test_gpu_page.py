"""A GPU's page: its assignments, and moving their limits."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from apps.nodes.models import Gpu, Sample
from tests.cast import GIB, Cast, Machine, placed
from tests.measurements import keep
from tests.pages.conftest import SignIn

HTMX = {"HX-Request": "true"}


def form_data(**changed: int | str) -> dict[str, int | str]:
    """Return the form as a browser sends it: the new values, and the earlier ones."""
    was: dict[str, int | str] = {"core_request": 30, "core_limit": 50, "memory_mib": "1 GiB"}
    return was | changed | {f"initial-{name}": value for name, value in was.items()}


def test_a_gpus_page_shows_every_piece_of_it(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, item = placed(cast, machine, core_request=30, core_limit=50, memory_mib=GIB)
    page = browser("olga").get(f"/gpus/{item.gpu.uuid}/").content.decode()
    for words in (f'data-key="{item.uid}"', f'/claims/{claim.uid}/"', 'type="range"', "70 %"):
        assert words in page
    living = browser("olga").get(f"/gpus/{item.gpu.uuid}/", headers=HTMX).content.decode()
    assert "<html" not in living
    series = browser("olga").get(f"/gpus/{item.gpu.uuid}/series/").json()
    assert [one["key"] for one in series["series"]] == [item.gpu.uuid, str(item.uid)]


def test_a_gpu_that_many_share_is_asked_about_no_more_often(cast: Cast, machine: Machine, browser: SignIn) -> None:
    olga, counts = browser("olga"), []
    for number in range(4):
        _, item = placed(cast, machine, name=f"train-{number}", core_request=20, core_limit=50, memory_mib=GIB)
        with CaptureQueriesContext(connection) as asked:
            olga.get(f"/gpus/{item.gpu.uuid}/")
        counts.append(len(asked))
    assert counts[1:] == [counts[1]] * 3


def test_a_limit_is_moved_and_only_what_was_typed_is_sent(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, item = placed(cast, machine, core_request=30, core_limit=50, memory_mib=GIB)
    path = f"/gpus/{item.gpu.uuid}/claims/{claim.uid}/"
    answer = browser("olga").post(path, form_data(core_limit=80), headers=HTMX)
    assert answer.status_code == 200
    assert "limit 50 → 80 %" in answer.content.decode()
    claim.refresh_from_db()
    assert (claim.core_request, claim.core_limit) == (30, 80)
    later = form_data(core_limit=60) | {"initial-core_limit": 80}
    assert browser("olga").post(path, later)["Location"] == f"/gpus/{item.gpu.uuid}/"


def test_a_refusal_says_why_and_keeps_what_was_typed(cast: Cast, machine: Machine, browser: SignIn) -> None:
    placed(cast, machine, core_request=60, core_limit=60)
    claim, item = placed(cast, machine, core_request=30, core_limit=50, memory_mib=GIB)
    path = f"/gpus/{item.gpu.uuid}/claims/{claim.uid}/"
    for headers in (HTMX, {}):
        answer = browser("olga").post(path, form_data(core_request=95, core_limit=95), headers=headers)
        assert answer.status_code == 422
        assert 'value="95"' in answer.content.decode()
    claim.refresh_from_db()
    assert claim.core_request == 30


def test_of_two_who_resize_it_there_the_second_is_told(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, item = placed(cast, machine, core_request=30, core_limit=50, memory_mib=GIB)
    cast.max.patch(f"claims/{claim.uid}/", {"core_limit": 60})
    path = f"/gpus/{item.gpu.uuid}/claims/{claim.uid}/"
    page = browser("olga").post(path, form_data(core_limit=80), headers=HTMX).content.decode()
    assert 'id="conflict"' in page
    assert 'value="80"' in page
    claim.refresh_from_db()
    assert claim.core_limit == 60
    # Sent again, it applies.
    again = form_data(core_limit=80) | {"initial-core_limit": 60}
    assert 'id="conflict"' not in browser("olga").post(path, again, headers=HTMX).content.decode()
    claim.refresh_from_db()
    assert claim.core_limit == 80


@pytest.mark.parametrize("who", ["anna", "gus"])
def test_gpus_are_the_operators(cast: Cast, machine: Machine, browser: SignIn, who: str) -> None:
    claim, item = placed(cast, machine, core_request=30, core_limit=50, memory_mib=GIB)
    page = f"/gpus/{item.gpu.uuid}/"
    assert browser(who).get(page).status_code == 403
    assert browser(who).get(f"{page}series/").status_code == 403
    assert browser(who).post(f"{page}claims/{claim.uid}/", form_data(core_limit=80)).status_code == 403
    assert browser("olga").get("/gpus/GPU-none/").status_code == 404
    claim.refresh_from_db()
    assert claim.core_limit == 50


def test_a_nodes_charts_have_its_boards_power(cast: Cast, machine: Machine, browser: SignIn) -> None:
    first, silent, *_ = Gpu.objects.filter(node__name="gpu1").order_by("index")
    now = timezone.now()
    keep(
        Sample(gpu_id=gpu.pk, at=now - timedelta(seconds=ago), core_percent=1, memory_bytes=1, power_watts=watts)
        for gpu, ago, watts in ((first, 2, 310.5), (first, 4, 300.0), (first, 600, 1.0), (silent, 2, None))
    )
    series = {one["key"]: one for one in browser("olga").get("/nodes/gpu1/series/").json()["series"]}
    assert series[f"{first.uuid}/power"]["power_watts"] == [300.0, 310.5]
    assert len(series[f"{first.uuid}/power"]["times"]) == 2
    assert series[f"{silent.uuid}/power"]["times"] == []
    assert f'data-key="{first.uuid}/power"' in browser("olga").get("/nodes/gpu1/").content.decode()


def test_the_list_shows_the_power_that_each_gpu_draws(cast: Cast, machine: Machine, browser: SignIn) -> None:
    gpu = Gpu.objects.get(index=1)
    at = timezone.now()
    keep(
        [Sample(node_id=gpu.node_id, gpu=gpu, at=at, core_percent=10.0, memory_bytes=0, processes=1, power_watts=231.6)]
    )
    page = " ".join(browser("olga").get("/gpus/").content.decode().split())
    assert page.count("232 W") == 1
    assert page.count('<td class="num">–</td>') == 3, "the others told none"
