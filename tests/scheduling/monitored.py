"""Metric names that dashboards, rules and alerts of `deploy/` use."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
METRIC = re.compile(r"\b(?:[a-z]+:)?(?:gpucloud|container|DCGM)_\w+(?::\w+)?|\bgpucloud:\w+:\w+")


def expressions() -> Iterator[str]:
    """Return every PromQL expression."""
    for file in sorted((ROOT / "deploy" / "grafana").glob("*.json")):
        board = json.loads(file.read_text())
        yield from (target["expr"] for panel in board["panels"] for target in panel["targets"])
        yield from (one["definition"] for one in board["templating"]["list"] if one["type"] == "query")
    for rule in _rules():
        yield rule["expr"]


def recorded_names() -> set[str]:
    """Return the names that recording rules define."""
    return {rule["record"] for rule in _rules() if "record" in rule}


def used_names() -> set[str]:
    """Return every name of ours in the expressions, except recorded ones."""
    return {name for text in expressions() for name in METRIC.findall(text)} - recorded_names()


def _rules() -> Iterator[dict[str, Any]]:
    for name in ("recording.yml", "alerts.yml"):
        for group in yaml.safe_load((ROOT / "deploy" / "prometheus" / name).read_text())["groups"]:
            yield from group["rules"]
