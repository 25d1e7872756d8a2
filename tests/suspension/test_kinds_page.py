"""The table of docs/backends.md of what each kind of share can do: each cell is asked of the API."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from apps.quotas.principals import SYSTEM
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import GIB, Cast, Machine, give_plenty
from tests.scheduling.divided import MEMORY_MIB, on_the_wire

PAGE = Path(__file__).resolve().parents[2] / "docs" / "backends.md"
KINDS = ("turns", "mps", "native", "mig")
# Of everything else that could refuse, none is a property of the kind.
REFUSALS = {
    "cannot-suspend",
    "fixed-by-profile",
    "not-with-hard-isolation",
    "back-end-cannot-suspend",
    "shrink-needs-lending",
}
YES, NO = "yes", "refused"
WINDOW = "weekdays 9-18 Europe/Berlin"


class Row(NamedTuple):
    """A request for a new claim, of an active one or of the pool, and its answers in the order of KINDS."""

    where: str
    body: dict[str, Any]
    answers: tuple[str, ...]


ROWS = {
    "`core_limit` above `core_request`": Row("new", {"core_limit": 90}, (YES, YES, YES, NO)),
    "`gpu_count` 2": Row("new", {"gpu_count": 2}, (YES, YES, YES, NO)),
    "a group (`group`, `group_size`)": Row("new", {"group": "g", "group_size": 2}, (YES, YES, YES, NO)),
    "`affinity`, `anti_affinity`, `exclusion`": Row("new", {"affinity": "web"}, (YES, YES, YES, NO)),
    "`class: best-effort`": Row("new", {"class": "best-effort"}, (YES, YES, YES, NO)),
    "`schedule`": Row("new", {"schedule": WINDOW}, (YES, YES, YES, NO)),
    "a live resize of core": Row("patch", {"core_request": 10, "core_limit": 10}, (YES, YES, YES, NO)),
    "a live resize of memory": Row("patch", {"memory_mib": 2048}, (YES, YES, YES, NO)),
    "suspend": Row("suspend", {}, (YES, NO, YES, NO)),
    "move to another GPU or node": Row("move", {}, (YES, NO, YES, NO)),
    "`oversubscribe` of the pool": Row("pool", {"oversubscribe": 2}, (YES, NO, YES, "–")),
    "`pack_keep_percent` of the pool": Row("pool", {"pack_keep_percent": 90}, (YES, NO, YES, "–")),
    "`idle_rule: shrink` of the pool": Row("pool", {"idle_rule": "shrink"}, (YES, NO, NO, "–")),
}


@pytest.fixture
def machine(cast: Cast) -> Machine:
    """Create a node of four GPUs, the first of them in MIG mode, that serves all back ends."""
    give_plenty(cast.acme)
    facts: dict[str, Any] = {"memory_mib": MEMORY_MIB["H200"], "model": "NVIDIA H200", "mig": {0: on_the_wire()}}
    made = Machine("gpu1", cast.pool, gpus=4, host_memory_mib=200 * GIB, backends=["mps", "native"], **facts)
    return made.stay_online()


def answer(cast: Cast, machine: Machine, kind: str, row: Row) -> Any:
    """Ask for it; nothing is changed but by a change of the pool."""
    change_pool(principal=SYSTEM, pool=cast.pool, backend="turns" if kind == "mig" else kind)
    cast.pool.refresh_from_db()
    asked = {"isolation": "hard"} if kind == "mig" else {}
    if row.where == "pool":
        return cast.olga.patch(f"pools/{cast.pool.name}/", row.body)
    share = {"tenant": cast.acme.slug, "pool": cast.pool.name, "core_request": 14, "memory_mib": 1024}
    if row.where == "new":
        return cast.max.post("claims/?dry_run=true", {**share, **asked, **row.body})
    created = cast.max.post("claims/", {**share, **asked})
    assert created.status in (201, 202), created
    run_round(cast.pool)
    machine.obey()
    uid = created.body["uid"]
    if row.where == "patch":
        return cast.max.patch(f"claims/{uid}/?dry_run=true", row.body)
    return cast.max.post(f"claims/{uid}/{row.where}/?dry_run=true", row.body)


# A pool's settings do not concern claims with an instance.
CELLS = [
    (kind, name) for name, row in ROWS.items() for kind, cell in zip(KINDS, row.answers, strict=True) if cell != "–"
]


@pytest.mark.parametrize(("kind", "name"), CELLS)
def test_each_cell_of_the_table_is_what_the_api_says(cast: Cast, machine: Machine, kind: str, name: str) -> None:
    row = ROWS[name]
    wanted = row.answers[KINDS.index(kind)]
    said = answer(cast, machine, kind, row)
    code = str(said.body.get("type", "")).rpartition("/")[2]
    assert (NO if code in REFUSALS else YES) == wanted, said
    # A move is not possible for other reasons, too.
    assert (said.status < 300) == (wanted == YES) or row.where == "move", said


def test_the_page_has_these_rows() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    wanted = [f"| {name} | {' | '.join(row.answers)} |" for name, row in ROWS.items()]
    assert [row for row in rows if row in wanted] == wanted
