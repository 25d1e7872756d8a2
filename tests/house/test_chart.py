"""The Helm chart: what it renders is valid for Kubernetes, has the least privileges, and follows the values."""

import json
import os
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from agent import rundir, settings
from apps.clusters.admission import manifests
from tests.helm import (
    CHART,
    EVERYTHING,
    OUTSIDE,
    Document,
    chosen,
    containers,
    helm,
    named,
    needs_helm,
    rendered,
    templates,
)

ROOT = CHART.parent.parent.parent
RULES = CHART / "files" / "webhooks.json"

pytestmark = needs_helm

# Kinds of operators that Kubernetes itself has no schema for.
OPERATORS = ("database.mode=cloudNativePG", "metrics.agents=true", "webhooks.certificate.source=certManager",
             "gateway.enabled=true", "gateway.parentRefs[0].name=public")  # fmt: skip
# One of each, and no agent: neither budgets nor spreading.
SMALL = (
    *OUTSIDE, "agent.enabled=false", *(f"{part}.replicas=1" for part in ("web", "scheduler", "worker", "clusters")),
    "extender.replicas=1", "webhooks.enabled=true", "webhooks.replicas=1",
)  # fmt: skip
CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding", "Namespace", "MutatingWebhookConfiguration",
                "ValidatingWebhookConfiguration"}  # fmt: skip


def test_helm_finds_nothing_to_complain_about() -> None:
    for values in ((), EVERYTHING):
        done = helm("lint", "--strict", str(CHART), *chosen(values))
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("version", ["1.28", "1.37"])
@pytest.mark.parametrize("values", [OUTSIDE, EVERYTHING, SMALL], ids=["defaults", "everything", "small"])
def test_kubernetes_takes_every_document(version: str, values: tuple[str, ...]) -> None:
    for one in rendered(*values):
        kubernetes_validate.validate(one, version, strict=True)


def test_objects_of_operators_appear_where_they_are_wanted() -> None:
    made = rendered(*EVERYTHING, *OPERATORS)
    kinds = {one["kind"] for one in made}
    assert {"Cluster", "PodMonitor", "Certificate", "Issuer", "HTTPRoute"} <= kinds
    assert not {"Cluster", "PodMonitor", "Certificate", "HTTPRoute"} & {one["kind"] for one in rendered(*OUTSIDE)}
    for _, spec in templates(made):
        for one in containers(spec):
            if {"secretRef": {"name": "gpucloud"}} in one.get("envFrom", []) and one["name"] not in {
                "extender",
                "webhooks",
            }:
                assert any(variable["name"] == "DATABASE_URL" for variable in one["env"]), one["name"]
    hook = named(made, "MutatingWebhookConfiguration", "gpucloud")
    assert hook["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == "gpucloud/gpucloud-webhooks"


@pytest.mark.parametrize("namespace", ["gpucloud", "gpus"])
def test_everything_is_in_the_releases_namespace_but_the_agents(namespace: str) -> None:
    made = rendered(*EVERYTHING, namespace=namespace)
    for one in made:
        name = f"{one['kind']} {one['metadata']['name']}"
        if one["kind"] in CLUSTER_WIDE:
            assert "namespace" not in one["metadata"], name
        else:
            if one["kind"] == "ResourceQuota":
                assert one["metadata"]["namespace"] in (namespace, "gpucloud-agents")
                continue
            of_agents = one["metadata"]["name"] == "gpucloud-agent" and one["kind"] != "PodMonitor"
            assert one["metadata"]["namespace"] == ("gpucloud-agents" if of_agents else namespace), name
    words = named(made, "ConfigMap", "gpucloud")["data"]
    assert words["CLUSTER_ACCOUNT"] == f"{namespace}/gpucloud-cluster"
    assert words.get("ADMISSION_TRUSTED") == (None if namespace == "gpucloud" else "system:serviceaccounts:gpus")
    for one in made:
        for subject in one.get("subjects", []):
            assert subject["namespace"] == namespace


def test_a_single_replica_may_be_moved() -> None:
    """A budget of one would forbid to drain its node."""
    kinds = {one["kind"] for one in rendered(*SMALL)}
    assert not {"PodDisruptionBudget", "DaemonSet", "Namespace"} & kinds


def test_pods_of_critical_classes_are_allowed_where_only_a_quota_allows_them() -> None:
    made = rendered(*EVERYTHING)
    allowed = {
        one["metadata"]["namespace"]: one["spec"]["scopeSelector"]["matchExpressions"][0]["values"]
        for one in made
        if one["kind"] == "ResourceQuota"
    }
    critical = {
        (one["metadata"]["namespace"], pod["priorityClassName"])
        for one in made
        if "priorityClassName" in (pod := one.get("spec", {}).get("template", {}).get("spec", {}))
    }
    assert {namespace for namespace, _ in critical} == {"gpucloud", "gpucloud-agents"} == set(allowed)
    for namespace, name in critical:
        assert name in allowed[namespace]


def test_selectors_find_their_pods() -> None:
    made = rendered(*EVERYTHING)
    pods = [one["spec"]["template"]["metadata"]["labels"] for one in made if "template" in one.get("spec", {})]
    for one in made:
        wanted = {
            "Deployment": lambda spec: spec["selector"]["matchLabels"],
            "Service": lambda spec: spec["selector"],
            "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
            "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
        }.get(one["kind"])
        if wanted:
            assert any(wanted(one["spec"]).items() <= labels.items() for labels in pods), one["metadata"]["name"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((), "Set database.url, or secret.existing"),
        (("database.url=postgresql://a@b/c",), "Set redis.url"),
        ((*OUTSIDE, "ingress.enabled=true"), "an Ingress needs the name"),
        ((*OUTSIDE, "webhooks.enabled=true", "webhooks.certificate.source=secret"), "webhooks.certificate.caBundle"),
        ((*OUTSIDE, "replicas=3"), "replicas"),
        ((*OUTSIDE, "web.replicas=0"), "web.replicas"),
        ((*OUTSIDE, "database.mode=mysql"), "database.mode"),
        (("database.url=mysql://a/b", "redis.url=redis://a"), "database.url"),
        ((*OUTSIDE, "settings.SECRET_KEY=abc"), "settings"),
        ((*OUTSIDE, "settings.SECRET_KEY_FALLBACKS=abc"), "settings"),
        ((*OUTSIDE, "secret.existing=mine"), "leave database.url and redis.url empty"),
        (("secret.existing=mine", "database.mode=bundled"), "leave secret.existing empty"),
        ((*OUTSIDE, "web.resources.limits.cpu=1", "web.resources.limits.memory=null"), "memory"),
    ],
)
def test_values_that_cannot_work_are_refused_in_words(values: tuple[str, ...], words: str) -> None:
    done = helm("template", "gpucloud", str(CHART), *chosen(values))
    assert done.returncode != 0
    assert words in done.stderr


def test_every_value_is_described_by_the_schema() -> None:
    def walk(values: Any, schema: Document, path: str) -> None:
        if "properties" not in schema:
            return
        assert schema["additionalProperties"] is False, path
        assert set(values) == set(schema["properties"]) - {"global"} or path.endswith(("resources", "issuer")), path
        for name, value in values.items():
            walk(value, schema["properties"][name], f"{path}.{name}")

    values, schema = (CHART / name for name in ("values.yaml", "values.schema.json"))
    walk(yaml.safe_load(values.read_text()), json.loads(schema.read_text()), "")


def test_a_secret_of_ones_own_is_used_by_all() -> None:
    made = rendered("secret.existing=mine")
    assert not [one for one in made if one["kind"] == "Secret"]
    used = {
        source["secretRef"]["name"]
        for _, spec in templates(made)
        for one in containers(spec)
        for source in one.get("envFrom", [])
        if "secretRef" in source
    }
    assert used == {"mine"}


def test_nothing_may_more_than_it_needs() -> None:
    made = rendered(*OUTSIDE, "sharepods.enabled=true", "dra.enabled=true", "webhooks.enabled=true")
    roles = {one["metadata"]["name"]: one["rules"] for one in made if "rules" in one}
    words = {
        name: {word for rule in rules for word in (*rule["resources"], *rule["verbs"])} for name, rules in roles.items()
    }
    assert set(words) == {
        "gpucloud-cluster", "gpucloud-devices", "gpucloud-extender", "gpucloud-sharepods", "gpucloud-web"
    }  # fmt: skip
    assert not {"*", "secrets", "escalate", "impersonate", "deletecollection"} & set.union(*words.values())
    assert "delete" not in words["gpucloud-cluster"]
    # Whoever reaches the web server must not change the cluster through it; reviews are questions.
    assert not {"patch", "update", "delete", "watch"} & words["gpucloud-web"]
    bound = {subject["name"] for one in made for subject in one.get("subjects", [])}
    assert bound == {name for name in roles if name not in ("gpucloud-extender", "gpucloud-devices")}
    accounts = {one["metadata"]["name"]: one for one in made if one["kind"] == "ServiceAccount"}
    assert {name for name, one in accounts.items() if one["automountServiceAccountToken"]} == bound
    for name, spec in templates(made):
        assert spec["serviceAccountName"] in accounts, name


def test_no_container_can_gain_rights_or_change_its_image() -> None:
    for name, spec in templates(rendered(*EVERYTHING)):
        for one in containers(spec):
            context = one["securityContext"]
            assert not context["allowPrivilegeEscalation"], name
            assert context["readOnlyRootFilesystem"], name
            assert context["capabilities"]["drop"] == ["ALL"], name
            assert not context.get("privileged"), name
            assert one["resources"]["limits"]["memory"], name
        if name != "gpucloud-agent":
            assert spec["securityContext"]["runAsNonRoot"], name
            assert not {"hostPID", "hostNetwork", "hostIPC"} & set(spec), name


def test_settings_that_are_given_exist() -> None:
    known = (ROOT / ".env.example").read_text()
    made = rendered(*EVERYTHING)
    for name in named(made, "ConfigMap", "gpucloud")["data"]:
        # A commented-out one is known, too.
        assert f"\n{name}=" in known.replace("\n#", "\n")
    words = (ROOT / "agent" / "__main__.py").read_text()
    [agent] = named(made, "DaemonSet", "gpucloud-agent")["spec"]["template"]["spec"]["containers"]
    mine = {one["name"] for one in agent["env"] if one["name"].startswith("GPUCLOUD_")}
    for name in {*mine, *named(made, "ConfigMap", "gpucloud-agent")["data"]}:
        assert f"  {name} " in words


def test_ones_own_settings_reach_the_processes_as_they_are(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    own = {"DATABASE_POOL_SIZE": 0, "METRICS_MOST_DETAILS": 12345678, "POD_CLAIM_SECONDS": "", "ALLOWED_HOSTS": "b.org"}
    how = {"settings": own, "host": "a.org", "https": True, "trustedProxies": ["10.0.0.0/8"]}
    values.write_text(yaml.safe_dump(how))
    done = helm("template", "gpucloud", str(CHART), "--namespace", "gpus", "-f", str(values), *chosen(OUTSIDE))
    assert done.returncode == 0, done.stderr
    made = [one for one in yaml.safe_load_all(done.stdout) if one]
    found = named(made, "ConfigMap", "gpucloud")["data"]
    assert (found["DATABASE_POOL_SIZE"], found["METRICS_MOST_DETAILS"]) == ("0", "12345678")
    assert found["POD_CLAIM_SECONDS"] == ""
    # The agents and the probes need the names of the Service and of the machine itself.
    assert {"127.0.0.1", "gpucloud", "gpucloud.gpus.svc", "a.org", "b.org"} <= set(found["ALLOWED_HOSTS"].split(","))
    assert found["FORWARDED_ALLOW_IPS"] == "127.0.0.1,10.0.0.0/8"
    assert (found["HTTPS_ONLY"], found["CSRF_TRUSTED_ORIGINS"]) == ("1", "https://a.org")
    own_trust = rendered(*OUTSIDE, "settings.ADMISSION_TRUSTED=bob", namespace="gpus")
    assert named(own_trust, "ConfigMap", "gpucloud")["data"]["ADMISSION_TRUSTED"] == "system:serviceaccounts:gpus,bob"


def test_changed_settings_start_new_pods() -> None:
    def sums(*values: str) -> dict[str, str]:
        return {
            one["metadata"]["name"]: one["spec"]["template"]["metadata"]["annotations"]["checksum/settings"]
            for one in rendered(*OUTSIDE, *values)
            if one["kind"] in {"Deployment", "DaemonSet"}
        }

    before, agents = sums(), sums("agent.settings.GPUCLOUD_AUDIT=warn")
    for changed in ("settings.LOCAL_ACCOUNTS=0", "redis.url=redis://elsewhere:6379/0", "secret.extra[0]=mail"):
        after = sums(changed)
        assert {name for name in before if before[name] == after[name]} == {"gpucloud-agent"}, changed
    assert {name for name in before if before[name] != agents[name]} == {"gpucloud-agent"}


def test_a_bundled_cache_asks_for_its_password() -> None:
    made = rendered(*EVERYTHING)
    words = named(made, "Secret", "gpucloud")["stringData"]
    assert words["REDIS_URL"] == f"redis://:{words['VALKEY_PASSWORD']}@gpucloud-valkey:6379/0"
    [valkey] = named(made, "StatefulSet", "gpucloud-valkey")["spec"]["template"]["spec"]["containers"]
    assert valkey["command"][-2:] == ["--requirepass", "$(VALKEYCLI_AUTH)"]


def test_the_leading_extender_may_be_replaced_though_only_it_is_ready() -> None:
    """With two replicas, `maxUnavailable: 1` would keep the old leader, and no new one would ever be ready."""
    extender = named(rendered(*OUTSIDE), "Deployment", "gpucloud-extender")
    assert extender["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == "100%"


def test_the_rules_of_the_webhooks_are_those_of_the_code() -> None:
    """`make chart` writes them."""
    options: dict[str, Any] = {
        "ca_bundle": b"",
        "service": ("gpucloud", "gpucloud-webhooks"),
        "hide_gpus": True,
        "devices": True,
    }
    text = json.dumps(manifests.configurations(**options), indent=2) + "\n"
    chart = rendered(*EVERYTHING)
    key = named(chart, "Secret", "gpucloud-devices-key")["stringData"]["ADMISSION_DEVICES_KEYS"]
    made = manifests.configurations(**options, cluster="kube", key=key)
    if os.environ.get("WRITE_CHART"):
        RULES.write_text(text)
    assert RULES.read_text() == text, "run `make chart`"
    shown = [one for one in chart if one["kind"].endswith("WebhookConfiguration")]
    for ours, theirs in zip(made, sorted(shown, key=lambda one: one["kind"]), strict=True):
        assert len(ours["webhooks"]) == len(theirs["webhooks"])
        for wanted, got in zip(ours["webhooks"], theirs["webhooks"], strict=True):
            assert got["clientConfig"].pop("caBundle")
            assert got == wanted | {"clientConfig": {"service": wanted["clientConfig"]["service"]}}
    few = [one for one in rendered(*OUTSIDE, "webhooks.enabled=true") if one["kind"].endswith("WebhookConfiguration")]
    names = {one["kind"]: [hook["name"] for hook in one["webhooks"]] for one in few}
    assert names["MutatingWebhookConfiguration"] == ["pods.gpucloud.io"]
    assert names["ValidatingWebhookConfiguration"] == ["pods.gpucloud.io", "things.gpucloud.io"]


@pytest.mark.parametrize(("dra", "root"), [(False, "/var/lib/kubelet"), (True, "/var/lib/k0s/kubelet")])
def test_the_agent_sees_what_its_settings_name_under_the_machines_own_paths(dra: bool, root: str) -> None:
    values = (*OUTSIDE, f"dra.enabled={str(dra).lower()}", "webhooks.enabled=true", f"agent.kubeletRoot={root}")
    spec = named(rendered(*values), "DaemonSet", "gpucloud-agent")["spec"]["template"]["spec"]
    [agent] = spec["containers"]
    environment = {one["name"]: one.get("value", "10.0.200.4") for one in agent["env"]}
    chosen = settings.read(server="http://gpucloud", state_dir=None, environment=environment)
    assert chosen.kubelet == settings.Kubelet(
        directory=Path("/var/lib/kubelet/device-plugins"),
        pod_resources=Path(root, "pod-resources", "kubelet.sock"),
        node="10.0.200.4",
        root=Path(root),
        dra=dra,
    )
    volumes = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one}
    mounts = {one["mountPath"]: volumes[one["name"]] for one in agent["volumeMounts"] if one["name"] in volumes}
    assert all(inside == outside for inside, outside in mounts.items())
    for path in (
        rundir.SYSTEM, settings.SYSTEM_CDI_DIR, chosen.state_dir, chosen.library.path, chosen.pages_library,
        chosen.arbiter, chosen.kubelet.directory, chosen.kubelet.pod_resources,
        *((chosen.kubelet.plugin_registry, chosen.kubelet.driver_directory) if dra else ()),
    ):  # fmt: skip
        assert any(path.is_relative_to(mount) for mount in mounts), path
    assert chosen.metrics == ("0.0.0.0", agent["ports"][0]["containerPort"])


def test_the_version_is_that_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found
    assert chart["version"] == chart["appVersion"] == found[1]


def test_the_webhook_that_charges_has_the_key_of_its_secret() -> None:
    made = rendered(*OUTSIDE, "dra.enabled=true", "webhooks.enabled=true")
    key = named(made, "Secret", "gpucloud-devices-key")["stringData"]["ADMISSION_DEVICES_KEYS"]
    [path] = [
        webhook["clientConfig"]["service"]["path"]
        for webhook in named(made, "ValidatingWebhookConfiguration", "gpucloud")["webhooks"]
        if webhook["name"] == "devices.gpucloud.io"
    ]
    assert path.endswith(f"/key.{key}")
    assert len(key) >= 32
    readers = {
        name
        for name, spec in templates(made)
        for one in containers(spec)
        if {"secretRef": {"name": "gpucloud-devices-key"}} in one.get("envFrom", [])
    }
    assert {"gpucloud-webhooks", "gpucloud-web"} <= readers
    assert "gpucloud-devices-key" not in str(rendered(*OUTSIDE, "webhooks.enabled=true"))
