"""Operators' settings of the scheduler: pools' policies, nodes' labels; and lists of its plans."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.commands import Shell, new_name

pytestmark = [pytest.mark.serial, pytest.mark.timeout(180)]


def test_a_pool_shows_how_it_places_and_rebalances(olga: Shell) -> None:
    name = new_name("p")
    made = olga.data("pool", "create", name, "--placement", "spread", "--rebalance-mode", "propose")
    assert (made["placement_policy"], made["rebalance_mode"]) == ("spread", "propose")
    assert olga.data("pool", "change", name, "--rebalance-policy", "percentile")["rebalance_policy"] == "percentile"
    head = olga.run("pool", "list").out.splitlines()[0]
    assert "PLACEMENT POLICY" in head
    assert "REBALANCE MODE" in head
    assert olga.data("proposal", "list", "--pool", name) == []


def test_a_nodes_labels_are_given_anew_as_a_whole(olga: Shell) -> None:
    name = new_name("n")
    assert olga.run("node", "add", name).code == 0
    assert olga.data("node", "change", name, "--labels", "zone=b,net=ib")["labels"] == {"zone": "b", "net": "ib"}
    assert olga.data("node", "change", name, "--labels", "zone=c")["labels"] == {"zone": "c"}
    assert olga.run("node", "change", name, "--labels", "zone").code == 2
    assert olga.data("node", "change", name, "--labels", "")["labels"] == {}


def test_a_pool_is_rebalanced_and_consolidated_and_an_empty_answer_says_why(olga: Shell) -> None:
    name = new_name("p")
    olga.data("pool", "create", name)
    ended = olga.run("pool", "rebalance", name, "--dry-run")
    assert (ended.code, ended.out, "No claim of the pool is active" in ended.err) == (0, "", True)
    assert olga.run("pool", "rebalance", name).code == 3
    ended = olga.run("pool", "consolidate", name, "--dry-run", "--most-moves", "2")
    assert (ended.code, ended.out, "could be moved" in ended.err) == (0, "", True)
    assert olga.data("pool", "consolidate", name)["plans"] == []
    assert olga.run("proposal", "accept", "00000000-0000-0000-0000-000000000000").code == 1
    assert olga.run("proposal", "dismiss", "00000000-0000-0000-0000-000000000000", "--words", "no").code == 1


def test_a_what_if_of_a_pool_without_gpus_or_without_an_order_says_so(olga: Shell) -> None:
    name = new_name("p")
    olga.data("pool", "create", name)
    ended = olga.run("pool", "what-if", name, "--days", "7", "--kind", "turns", "--kind", "mig")
    assert (ended.code != 0, "has no GPUs" in ended.err) == (True, True)
    assert "none: 0 %" in olga.run("pool", "what-if", name, "--last").err
    assert olga.data("pool", "what-if", name, "--last")["state"] == "none"


def test_the_queue_of_every_pool_says_when_and_why(olga: Shell, tenant: str) -> None:
    later = (datetime.now(UTC) + timedelta(days=30)).isoformat()
    claim = olga.data(
        "claim", "create", "--tenant", tenant, "--core", "100", "--memory", "1GiB", "--when-over-quota", "wait",
        "--gpus", "4", "--start-at", later,
    )  # fmt: skip
    (row,) = olga.data("queue", "list", "--tenant", tenant)
    assert (row["claim"], row["pool"]) == (claim["uid"], "default")
    head = olga.run("queue", "list", "--tenant", tenant).out.splitlines()[0]
    assert {"POOL", "STARTS", "REASON"} <= set(head.split())
    olga.run("claim", "release", claim["uid"])


def test_the_queue_is_listed_in_its_order(olga: Shell) -> None:
    said = olga.run("queue", "list", "--help").out
    assert "next first" in said
    assert "newest" not in said
