"""Dashboards, rules and alerts checked by Prometheus' own tool; test_metrics checks that their metrics exist."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool (Debian's package prometheus)")


def load(name: str) -> Any:
    return yaml.safe_load((PROMETHEUS / name).read_text())


def rules(name: str) -> list[dict[str, Any]]:
    return [rule for group in load(name)["groups"] for rule in group["rules"]]


@promtool
@pytest.mark.parametrize("file", ["recording.yml", "alerts.yml"])
def test_promtool_finds_no_fault_in_the_rules(file: str) -> None:
    subprocess.run(["promtool", "check", "rules", "--lint-fatal", file], cwd=PROMETHEUS, check=True)


@promtool
@pytest.mark.parametrize("options", [["prometheus.yml"], ["--agent", "agent.yml"]], ids=["prometheus", "agent"])
def test_promtool_finds_no_fault_in_the_examples(options: list[str]) -> None:
    subprocess.run(["promtool", "check", "config", "--syntax-only", *options], cwd=PROMETHEUS, check=True)


@promtool
def test_alerts_fire_when_they_should_and_only_then() -> None:
    subprocess.run(["promtool", "test", "rules", "alerts.test.yml"], cwd=PROMETHEUS, check=True)


def test_every_alert_has_a_test_in_which_it_fires() -> None:
    fired = {
        test["alertname"] for group in load("alerts.test.yml")["tests"] for test in group.get("alert_rule_test", ())
        if test["exp_alerts"]
    }  # fmt: skip
    assert fired == {rule["alert"] for rule in rules("alerts.yml")}


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    for rule in rules("alerts.yml"):
        assert rule["labels"]["severity"] in {"page", "ticket"}, rule["alert"]
        assert {"summary", "description"} == set(rule["annotations"]), rule["alert"]


def test_the_example_names_the_rules_that_are_there() -> None:
    assert load("prometheus.yml")["rule_files"] == ["recording.yml", "alerts.yml"]


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_a_dashboard_can_be_imported_anywhere(file: Path) -> None:
    board = json.loads(file.read_text())
    assert board["uid"] == file.stem
    assert "id" not in board
    for panel in board["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        assert panel["targets"], panel["title"]
    places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len(set(places)) == len(places)
