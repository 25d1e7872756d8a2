"""What operators set for the scheduler: pools' policies, nodes' labels; and the lists of what it would do."""

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


def test_the_queue_is_listed_in_its_order(olga: Shell) -> None:
    said = olga.run("queue", "list", "--help").out
    assert "next first" in said
    assert "newest" not in said
