"""Probes of the chart: how its processes start, run and end."""

from agent.rundir import SYSTEM, RunDir
from apps.clusters.extender import listener
from tests.helm import CHART, EVERYTHING, OUTSIDE, chosen, helm, named, needs_helm, rendered, templates

ROOT = CHART.parent.parent.parent
pytestmark = needs_helm


def test_a_process_that_is_slow_to_start_is_not_restarted() -> None:
    specs = dict(templates(rendered(*EVERYTHING)))
    serving = [one for name, spec in specs.items() for one in spec["containers"]
               if "livenessProbe" in one and name.startswith("gpucloud-")]  # fmt: skip
    assert {one["name"] for one in serving} >= {"web", "extender", "webhooks"}
    for one in serving:
        start = one["startupProbe"]
        assert start["periodSeconds"] * start["failureThreshold"] >= 300, one["name"]


def test_every_process_is_asked_whether_it_is_alive() -> None:
    made = rendered(*EVERYTHING)
    specs = {name: spec for name, spec in templates(made) if name.startswith("gpucloud-")}
    parts = {one["name"]: one for spec in specs.values() for one in spec["containers"]}
    alone = {name: one for name, one in parts.items() if "livenessProbe" in one and "exec" in one["livenessProbe"]}
    assert set(alone) == {"scheduler", "worker", "beat", "clusters", "sharepods", "agent"}
    paths = {
        name: one["livenessProbe"]["httpGet"]
        for name, one in parts.items()
        if "httpGet" in one.get("livenessProbe", {})
    }
    assert paths == {
        "extender": {"path": listener.ALIVE, "port": "http", "scheme": "HTTP"},
        "webhooks": {"path": listener.ALIVE, "port": "https", "scheme": "HTTPS"},
    }
    once = {"migrate", "ask"}
    # Nothing is gained by a restart of a database.
    assert {name for name, one in parts.items() if "livenessProbe" not in one} == {*once, "postgresql", "valkey"}
    shared = named(made, "ConfigMap", "gpucloud")["data"]["HEARTBEAT_PATH"]
    for name, one in alone.items():
        own = {each["name"]: each.get("value", "") for each in one.get("env", [])}
        assert ("HEARTBEAT_PATH" in own) == (name == "agent")
        file = own.get("HEARTBEAT_PATH", shared)
        if name == "agent":
            # The agent touches it in its run directory, whatever the variable says.
            assert file == str(RunDir(SYSTEM).heartbeat)
        for probe in (one["startupProbe"], one["livenessProbe"]):
            # No Python, which would take seconds of a small node for each look.
            assert probe["exec"]["command"] == ["sh", "deploy/docker/alive.sh"], name
            assert probe["timeoutSeconds"] >= 10, name
        assert any(
            file.startswith(f"{mount['mountPath']}/") and not mount.get("readOnly") for mount in one["volumeMounts"]
        )
    assert (ROOT / "deploy" / "docker" / "alive.sh").exists()
    refused = helm("template", "gpucloud", str(CHART), *chosen((*OUTSIDE, "settings.HEARTBEAT_PATH=/elsewhere")))
    assert refused.returncode != 0
    assert "HEARTBEAT_PATH" in refused.stderr


def test_a_process_that_still_starts_ends_by_sigterm() -> None:
    """It does not as the first of its process namespace; Compose has an init for that."""
    deployments = [one for one in rendered(*EVERYTHING) if one["kind"] == "Deployment"]
    assert len(deployments) >= 8
    for one in deployments:
        assert one["spec"]["template"]["spec"]["shareProcessNamespace"] is True, one["metadata"]["name"]


def test_processes_wait_for_the_migration_without_starting_python_again_and_again() -> None:
    def waiting(*values: str) -> dict[str, list[str]]:
        specs = templates(rendered(*OUTSIDE, *values))
        return {name: first["command"] for name, spec in specs for first in spec.get("initContainers", [])
                if first["name"] == "wait-for-migration"}  # fmt: skip

    found = waiting("webhooks.enabled=true", "sharepods.enabled=true")
    parts = ("web", "scheduler", "worker", "beat", "clusters", "extender", "sharepods")
    # The webhooks of pods ask no database, so that pods can be created while there is none.
    command = ["python", "manage.py", "wait_for_migrations"]
    assert found == {f"gpucloud-{part}": command for part in parts}
    assert "gpucloud-webhooks" in waiting("webhooks.enabled=true", "dra.enabled=true")
