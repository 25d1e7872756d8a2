"""Webhooks called by a real API server: configured by the command, trusted by its bundle, also after a rotation."""

import json
import uuid
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import call_command

from apps.clusters.admission.policy import decisions
from apps.clusters.core.devices import EXTENDED_RESOURCE
from apps.clusters.kube.client import Client, Refused
from tests.clusters.admission.serving import serve
from tests.clusters.control_plane import ControlPlane
from tests.clusters.formats.pods import container_with, pod
from tests.clusters.formats.test_decisions import forgeries
from tests.clusters.real import until

pytestmark = [pytest.mark.serial, pytest.mark.control_plane]
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"


class Webhooks:
    """An API server that calls us, in a namespace of the test's own."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self.client: Client = plane.client()
        self.directory = directory
        self.name = f"t-{uuid.uuid4().hex[:8]}"
        self.client.post("/api/v1/namespaces", {"metadata": {"name": self.name}})

    def certificates(self, **options: Any) -> list[dict[str, Any]]:
        """Return the command's output and its files."""
        out = StringIO()
        call_command("webhook_certificates", directory=self.directory, stdout=out, stderr=StringIO(), **options)
        return list(yaml.safe_load_all(out.getvalue()))

    def configure(self, url: str, **options: Any) -> None:
        """Apply the command's output, as `kubectl apply` does."""
        self.forget()
        for configuration in self.certificates(url=url, **options):
            self.client.post(f"{CONFIGURATIONS}/{configuration['kind'].lower()}s", configuration)
        until(self.refuses_nonsense)

    def forget(self) -> None:
        for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
            self.client.delete(f"{CONFIGURATIONS}/{kind}")

    def refuses_nonsense(self) -> bool:
        """Return True once the API server calls us, which takes a moment."""
        try:
            self.make(container_with(core=150))
        except Refused as error:
            return "multiple of 100" in error.message
        return False

    def make(self, container: dict[str, Any]) -> dict[str, Any]:
        return self.make_of(self.client, pod(container))

    def make_of(self, client: Client, thing: dict[str, Any]) -> dict[str, Any]:
        """Create the pod here, by this client, under a name of its own."""
        thing["metadata"] |= {"name": f"p-{uuid.uuid4().hex[:8]}", "namespace": self.name}
        thing["metadata"].pop("uid", None)
        for container in thing["spec"]["containers"]:
            container.setdefault("image", "cuda:12")
        made: dict[str, Any] = json.loads(client.post(f"/api/v1/namespaces/{self.name}/pods", thing))
        return made


@pytest.fixture
def webhooks(real_plane: ControlPlane, tmp_path: Path) -> Iterator[Webhooks]:
    made = Webhooks(real_plane, tmp_path / "tls")
    yield made
    made.forget()
    made.client.delete(f"/api/v1/namespaces/{made.name}")


def test_pods_are_filled_and_judged_and_others_pass_also_while_we_are_away(webhooks: Webhooks, settings: Any) -> None:
    settings.ADMISSION_SCHEDULER_NAME, settings.ADMISSION_DEFAULT_MEMORY_MIB = "gpucloud", 1024
    webhooks.certificates(url="https://127.0.0.1:1")
    with serve(webhooks.directory) as url:
        webhooks.configure(url)
        made = webhooks.make(container_with(core=30))
        assert made["spec"]["schedulerName"] == "gpucloud"
        assert made["spec"]["containers"][0]["resources"]["requests"]["tencent.com/vcuda-memory"] == "4"
        assert webhooks.make({})["spec"]["schedulerName"] == "default-scheduler"
        # kube-scheduler would try to bind this one again and again.
        with pytest.raises(Refused, match="use a ResourceClaim"):
            webhooks.make({"name": "main", "resources": {"limits": {EXTENDED_RESOURCE: "1"}}})
    assert webhooks.make({})["metadata"]["name"]
    with pytest.raises(Refused, match="failed calling webhook"):
        webhooks.make(container_with(core=100))


def test_after_a_rotation_the_api_server_trusts_what_the_door_serves(webhooks: Webhooks) -> None:
    webhooks.certificates(url="https://127.0.0.1:1")
    with serve(webhooks.directory) as url:
        webhooks.configure(url)
        before = (webhooks.directory / "ca-bundle.crt").read_bytes()
        (webhooks.directory / "ca.key").unlink()
        webhooks.certificates(url=url)
        assert (webhooks.directory / "ca-bundle.crt").read_bytes() != before
    with serve(webhooks.directory) as url:
        webhooks.configure(url)
        assert webhooks.make(container_with(core=100))["metadata"]["name"]


RBAC = "rbac.authorization.k8s.io"
FORBIDDEN = 403


@pytest.fixture
def anna(webhooks: Webhooks, real_plane: ControlPlane) -> Client:
    """Return a client with `edit`, and the right to add containers for debugging, in the test's namespace."""
    path = f"/apis/{RBAC}/v1/namespaces/{webhooks.name}"
    debugging = {"apiGroups": [""], "resources": ["pods/ephemeralcontainers"], "verbs": ["patch"]}
    webhooks.client.post(f"{path}/roles", {"metadata": {"name": "debugging"}, "rules": [debugging]})
    # `edit` is the sum of the next two, which a controller makes that does not run here.
    bound = [("ClusterRole", name) for name in ("edit", "system:aggregate-to-edit", "system:aggregate-to-view")]
    for kind, name in (*bound, ("Role", "debugging")):
        binding = {
            "metadata": {"name": f"anna-{name.rpartition(':')[2]}"},
            "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "anna"}],
        }
        webhooks.client.post(f"{path}/rolebindings", binding)
    client = Client(yaml.safe_load(real_plane.kubeconfig_by_certificate("anna")))

    def may_write() -> bool:
        try:
            client.post(f"/api/v1/namespaces/{webhooks.name}/pods?dryRun=All", {"metadata": {"name": "trial"}})
        except Refused as error:
            return error.status != FORBIDDEN
        return True

    # The API server makes its roles after its start, and heeds new ones a moment later.
    until(may_write)
    return client


def test_an_account_with_edit_in_one_namespace_writes_no_word_that_decides(webhooks: Webhooks, anna: Client) -> None:
    webhooks.certificates(url="https://127.0.0.1:1")
    with serve(webhooks.directory) as url:
        webhooks.configure(url)
        for word, forged in forgeries().items():
            made = webhooks.make_of(anna, forged)
            assert not decisions(made), word
        # Nor later, to a pod that asks nothing and that the webhooks have not seen before.
        plain = webhooks.make_of(anna, pod({}))["metadata"]["name"]
        for forged in forgeries().values():
            meta = {key: forged["metadata"][key] for key in ("annotations", "labels") if key in forged["metadata"]}
            with pytest.raises(Refused, match=r"leave its annotations|what a pod asks"):
                anna.patch(f"/api/v1/namespaces/{webhooks.name}/pods/{plain}", {"metadata": meta})


def test_gpus_are_hidden_from_containers_that_ask_for_none(webhooks: Webhooks, anna: Client) -> None:
    hidden = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    webhooks.certificates(url="https://127.0.0.1:1")
    with serve(webhooks.directory) as url:
        webhooks.configure(url, hide_gpus=True)
        env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
        made = webhooks.make_of(anna, pod({}, {"env": env}, container_with(core=100)))
        assert [one.get("env") for one in made["spec"]["containers"]] == [[hidden], [hidden], None]
        path = f"/api/v1/namespaces/{webhooks.name}/pods/{made['metadata']['name']}"
        debugger = {"name": "debugger", "image": "cuda:12", "env": env}
        anna.patch(f"{path}/ephemeralcontainers", {"spec": {"ephemeralContainers": [debugger]}})
        assert webhooks.client.get(path)["spec"]["ephemeralContainers"][0]["env"] == [hidden]
        # Namespaces of agents, exporters and device plugins are labelled.
        webhooks.client.patch(
            f"/api/v1/namespaces/{webhooks.name}", {"metadata": {"labels": {"gpucloud.io/gpus": "visible"}}}
        )
        until(lambda: webhooks.make_of(anna, pod({}))["spec"]["containers"][0].get("env") is None)
    # While the webhook is away, no pod waits for it.
    assert webhooks.make_of(anna, pod({}))["metadata"]["name"]
