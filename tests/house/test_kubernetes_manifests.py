"""The manifests in deploy/kubernetes: valid for Kubernetes, with the least privileges."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from agent import rundir, settings

ROOT = Path(__file__).resolve().parent.parent.parent
MANIFESTS = ROOT / "deploy" / "kubernetes"
Document = dict[str, Any]


def read(name: str) -> list[Document]:
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def documents() -> list[Document]:
    return [one for name in read("kustomization.yaml")[0]["resources"] for one in read(name)]


def templates() -> Iterator[tuple[str, Document]]:
    for one in documents():
        if "template" in one.get("spec", {}):
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]


def containers(spec: Document) -> list[Document]:
    return [*spec.get("initContainers", []), *spec["containers"]]


def daemon_set() -> Document:
    return next(spec for name, spec in templates() if name == "gpucloud-agent")


def test_every_file_is_used() -> None:
    files = {path.name for path in MANIFESTS.glob("*.yaml")}
    assert files == {"kustomization.yaml", *read("kustomization.yaml")[0]["resources"]}


@pytest.mark.parametrize("version", ["1.28", "1.37"])
def test_kubernetes_takes_every_document(version: str) -> None:
    for one in documents():
        kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_builds_what_kubernetes_takes() -> None:
    built = subprocess.run(["kubectl", "kustomize", MANIFESTS], check=True, capture_output=True, text=True).stdout
    made = list(yaml.safe_load_all(built))
    assert {one["metadata"].get("namespace") for one in made} == {"gpucloud", "gpucloud-agents", None}
    for one in made:
        kubernetes_validate.validate(one, "1.37", strict=True)


def test_nothing_may_more_than_it_needs() -> None:
    roles = {one["metadata"]["name"]: one["rules"] for one in documents() if "rules" in one}
    words = {
        name: {word for rule in rules for word in (*rule["resources"], *rule["verbs"])} for name, rules in roles.items()
    }
    assert set(words) == {"gpucloud-cluster", "gpucloud-extender", "gpucloud-sharepods", "gpucloud-web"}
    assert not {"*", "secrets", "escalate", "impersonate", "deletecollection"} & set.union(*words.values())
    assert "delete" not in words["gpucloud-cluster"]
    # Whoever reaches the web server must not change the cluster through it; reviews are questions.
    assert not {"patch", "update", "delete", "watch"} & words["gpucloud-web"]
    bound = {subject["name"] for one in documents() for subject in one.get("subjects", [])}
    assert bound == {name for name in roles if name != "gpucloud-extender"}
    accounts = {one["metadata"]["name"]: one for one in documents() if one["kind"] == "ServiceAccount"}
    assert {name for name, one in accounts.items() if one["automountServiceAccountToken"]} == bound
    for name, spec in templates():
        assert spec["serviceAccountName"] in accounts, name


def test_no_container_can_gain_rights_or_change_its_image() -> None:
    for name, spec in templates():
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
    maps = {one["name"]: one["literals"] for one in read("kustomization.yaml")[0]["configMapGenerator"]}
    for literal in maps["gpucloud"]:
        # A commented-out one is known, too.
        assert f"\n{literal.partition('=')[0]}=" in known.replace("\n#", "\n")
    words = (ROOT / "agent" / "__main__.py").read_text()
    mine = {one["name"] for one in daemon_set()["containers"][0]["env"] if one["name"].startswith("GPUCLOUD_")}
    for name in {*mine, *(literal.partition("=")[0] for literal in maps["gpucloud-agent"])}:
        assert f"  {name} " in words


def test_the_agent_sees_what_its_settings_name_under_the_machines_own_paths() -> None:
    spec = daemon_set()
    [agent] = spec["containers"]
    environment = {one["name"]: one.get("value", "10.0.200.4") for one in agent["env"]}
    chosen = settings.read(server="http://gpucloud", state_dir=None, environment=environment)
    assert chosen.kubelet == settings.Kubelet(
        directory=Path("/var/lib/kubelet/device-plugins"),
        pod_resources=Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        node="10.0.200.4",
    )
    volumes = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one}
    mounts = {one["mountPath"]: volumes[one["name"]] for one in agent["volumeMounts"] if one["name"] in volumes}
    assert all(inside == outside for inside, outside in mounts.items())
    for path in (
        rundir.SYSTEM, settings.SYSTEM_CDI_DIR, chosen.state_dir, chosen.library.path, chosen.pages_library,
        chosen.arbiter, chosen.kubelet.directory, chosen.kubelet.pod_resources,
    ):  # fmt: skip
        assert any(path.is_relative_to(mount) for mount in mounts), path
    assert chosen.metrics == ("0.0.0.0", agent["ports"][0]["containerPort"])
