"""Configuration for kube-scheduler, in both forms and from one to the other."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import CommandError, call_command

from apps.clusters.services import clusters, scheduler_configuration
from apps.quotas.principals import SYSTEM
from tests.cast import Cast
from tests.clusters.kubeconfigs import kubeconfig

# From gpu-admission's documentation.
OLD: dict[str, Any] = {
    "kind": "Policy",
    "apiVersion": "v1",
    "predicates": [{"name": "PodFitsHostPorts"}],
    "extenders": [
        {
            "urlPrefix": "http://127.0.0.1:3456/scheduler",
            "apiVersion": "v1beta1",
            "filterVerb": "predicates",
            "enableHttps": False,
            "nodeCacheCapable": False,
            "httpTimeout": 90_000_000_000,
        }
    ],
}


def test_an_old_policy_becomes_a_configuration() -> None:
    made, left_out = scheduler_configuration.convert(OLD)
    assert made == {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "extenders": [
            {
                "urlPrefix": "http://127.0.0.1:3456/scheduler",
                "filterVerb": "predicates",
                "nodeCacheCapable": False,
                "enableHTTPS": False,
                "httpTimeout": "90s",
            }
        ],
    }
    assert left_out == ["predicates"]


@pytest.mark.parametrize("url", ["http://10.0.0.1:3456", "https://extender.example.org/"])
@pytest.mark.parametrize("everything", [False, True])
def test_there_and_back_changes_nothing(url: str, everything: bool) -> None:
    made = scheduler_configuration.configuration(
        scheduler_configuration.extender(url, everything=everything, caFile="/etc/ca.pem")
    )
    policy, _ = scheduler_configuration.convert(made)
    assert scheduler_configuration.convert(policy) == (made, [])


@pytest.mark.parametrize(
    ("text", "nanoseconds"), [("1m30s", 90 * 10**9), ("500ms", 5 * 10**8), (7, 7), ("1.5s", 15 * 10**8)]
)
def test_timeouts_are_read_as_go_writes_them(text: object, nanoseconds: int) -> None:
    made = scheduler_configuration.policy({"httpTimeout": text})
    assert made["extenders"] == [{"httpTimeout": nanoseconds}]


@pytest.mark.parametrize("text", ["", "soon", "10", "10 s", True, None])
def test_a_timeout_that_is_none_is_refused(text: object) -> None:
    with pytest.raises(scheduler_configuration.NotASchedulerConfiguration):
        scheduler_configuration.policy({"httpTimeout": text})


def command(*arguments: str) -> Any:
    out = StringIO()
    call_command("scheduler_config", *arguments, stdout=out, stderr=StringIO())
    return yaml.safe_load(out.getvalue())


@pytest.mark.django_db
def test_the_command_names_the_cluster_in_the_path(cast: Cast) -> None:
    assert command("--url", "https://e:1")["extenders"][0]["urlPrefix"] == "https://e:1/scheduler"
    for name in ("first", "second"):
        clusters.connect(principal=SYSTEM, name=name, pool=cast.pool, kubeconfig=kubeconfig())
    assert command("--url", "https://e:1")["extenders"][0]["urlPrefix"] == "https://e:1/clusters/first/scheduler"
    named = command("--url", "https://e:1", "--cluster", "second")
    assert named["extenders"][0]["urlPrefix"] == "https://e:1/clusters/second/scheduler"
    with pytest.raises(CommandError, match="no cluster third"):
        command("--cluster", "third")


@pytest.mark.django_db
def test_the_command_prints_either_form() -> None:
    new, old = command("--url", "https://e:1"), command("--url", "https://e:1", "--policy")
    assert (new["kind"], new["extenders"][0]["enableHTTPS"]) == ("KubeSchedulerConfiguration", True)
    assert (old["kind"], old["extenders"][0]["enableHttps"]) == ("Policy", True)
    assert command("--scheduler-name", "gpu")["profiles"] == [{"schedulerName": "gpu"}]


def test_the_command_converts_a_file(tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(OLD))
    assert command("--convert", str(file)) == scheduler_configuration.convert(OLD)[0]
    file.write_text("kind: Pod")
    with pytest.raises(CommandError, match="neither Policy nor"):
        command("--convert", str(file))
