"""Dynamic Resource Allocation on a real API server and kube-scheduler."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from io import StringIO
from pathlib import Path

import pytest
import yaml
from django.core.management import call_command

from apps.clusters.dra import charging, requests
from apps.clusters.kube.client import Refused
from apps.clusters.models import DeviceClaim
from apps.nodes.models import Gpu
from apps.quotas.principals import SYSTEM
from apps.scheduling.services.claims import lifecycle
from tests.cast import GIB, Cast, assert_books_agree, give, placed, used
from tests.clusters.admission.serving import serve
from tests.clusters.cluster_objects import pod, remove
from tests.clusters.control_plane import ControlPlane
from tests.clusters.dra import things
from tests.clusters.dra.site import Site
from tests.clusters.dra.things import API

pytestmark = [pytest.mark.control_plane, pytest.mark.serial, pytest.mark.timeout(300)]
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Start a control plane whose scheduler allocates devices by itself."""
    config = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    with ControlPlane(tmp_path_factory.mktemp("kube"), scheduler_config=config) as it:
        yield it


@pytest.fixture
def site(plane: ControlPlane, cast: Cast) -> Iterator[Site]:
    made = Site(plane, cast)
    yield made
    made.close()


def test_a_resource_claim_is_allocated_charged_resized_and_ends(site: Site, cast: Cast) -> None:
    give(cast.acme, core_percent=200, memory_mib=100 * GIB)
    site.until(lambda: site.left() == (100, 24 * GIB))
    site.make(things.claim("train", site.name))
    site.until(lambda: used(cast.acme)["core_percent"] == 30)
    assert DeviceClaim.objects.get().claim.state == "allocating"  # type: ignore[union-attr]
    site.make(things.pod("p", site.name, claim="train"))
    site.until(lambda: site.condition("train")[0] == "True")
    claim = DeviceClaim.objects.get().claim
    assert claim is not None
    assert (claim.state, claim.core_request, claim.memory_mib) == ("active", 30, 2 * GIB)
    assert pod(site.client, site.name, "p")["spec"]["nodeName"] == site.name
    # kube-scheduler counts the 30 percent itself.
    assert site.left() == (100, 24 * GIB)
    path = f"{API}/namespaces/{site.name}/resourceclaims/train"
    site.client.patch(path, {"metadata": {"annotations": {requests.CORE_KEY: "60", requests.MEMORY_KEY: "4Gi"}}})
    # The size is there before the node has confirmed it.
    site.until(lambda: site.condition("train")[2].get("core") == 60 and site.condition("train")[0] == "True")
    assert site.condition("train")[1] == "InForce"
    # It counts 30 still, so 70 are left to be allocated in all.
    site.until(lambda: site.left() == (70, 22 * GIB))
    site.client.patch(path, {"metadata": {"annotations": {requests.CORE_KEY: "150"}}})
    site.until(lambda: site.condition("train")[1] == "Refused")
    site.client.patch(path, {"metadata": {"annotations": {requests.CORE_KEY: "10"}}})
    site.until(lambda: site.condition("train")[2].get("core") == 10)
    site.until(lambda: site.left() == (120, 22 * GIB))
    remove(site.client, site.name, "p")
    # Nobody uses it: Kubernetes takes the allocation away, and the ledger keeps the charge.
    site.until(lambda: not site.claim("train").get("status", {}).get("allocation"))
    site.until(lambda: DeviceClaim.objects.get().claim.state == "allocating")  # type: ignore[union-attr]
    assert used(cast.acme)["core_percent"] == 30
    site.client.delete(path)
    site.until(lambda: used(cast.acme)["core_percent"] == 0)
    site.until(lambda: site.left() == (100, 24 * GIB))
    assert_books_agree()


@pytest.fixture
def charged(plane: ControlPlane, real_cast: Cast, tmp_path: Path) -> Iterator[Site]:
    """Return a site whose API server asks the webhook, which has database sessions of its own."""
    made, output = Site(plane, real_cast, gpus=4), StringIO()

    def write(url: str) -> None:
        output.truncate(output.seek(0))
        options = {"directory": tmp_path, "url": url, "devices": made.name}
        call_command("webhook_certificates", stdout=output, stderr=StringIO(), **options)

    write("https://127.0.0.1:1")
    with ExitStack() as listening:
        write(listening.enter_context(serve(tmp_path, charging.application)))
        [configuration] = [one for one in yaml.safe_load_all(output.getvalue()) if one["kind"].startswith("Validating")]
        made.client.post(WEBHOOKS, configuration)
        made.until(lambda: "from 1 to 100" in made.refusal(things.claim("nonsense", made.name, core=150), dryRun="All"))
        made.take_webhooks_away = listening.close
        yield made
        made.client.delete(f"{WEBHOOKS}/gpucloud")
    made.close()


def test_the_api_server_refuses_what_the_quota_has_no_room_for(charged: Site, real_cast: Cast) -> None:
    give(real_cast.acme, core_percent=50, memory_mib=100 * GIB)
    assert charged.refusal(things.claim("dry", charged.name, core=50), dryRun="All") == ""
    assert used(real_cast.acme)["core_percent"] == 0
    assert "Core quota exceeded" in charged.refusal(things.claim("many", charged.name, core=20, count=3))
    assert charged.refusal(things.claim("one", charged.name, core=30)) == ""
    assert used(real_cast.acme)["core_percent"] == 30
    # What the API server refuses for another reason is charged for a moment.
    assert "already exists" in charged.refusal(things.claim("one", charged.name, core=10))
    # Other tests' are there, too, without a tenant.
    rows = DeviceClaim.objects.live().filter(namespace=charged.name)
    charged.until(lambda: rows.filter(seen=True).count() == 1)
    rows.filter(seen=False).update(created_at="2026-01-01T00:00:00Z")
    charged.until(lambda: rows.count() == 1 and used(real_cast.acme)["core_percent"] == 30)
    assert_books_agree()


def test_charged_claims_are_allocated_and_end_while_the_webhooks_are_away(charged: Site, real_cast: Cast) -> None:
    """kube-scheduler and Kubernetes' controllers update them: they set a finalizer and remove it."""
    give(real_cast.acme, core_percent=50, memory_mib=100 * GIB)
    charged.make(things.claim("one", charged.name, core=30))
    charged.take_webhooks_away()
    assert "failed calling webhook" in charged.refusal(things.claim("two", charged.name, core=10))
    charged.make(things.pod("p", charged.name, claim="one"))
    charged.until(lambda: charged.condition("one")[0] == "True")
    path = f"{API}/namespaces/{charged.name}/resourceclaims/one"
    with pytest.raises(Refused, match="failed calling webhook"):
        charged.client.patch(path, {"metadata": {"annotations": {requests.CORE_KEY: "40"}}})
    remove(charged.client, charged.name, "p")
    charged.client.delete(path)
    charged.until(lambda: used(real_cast.acme)["core_percent"] == 0)
    assert_books_agree()


def test_of_many_at_once_none_is_over_the_quota(charged: Site, real_cast: Cast) -> None:
    give(real_cast.acme, core_percent=100, memory_mib=100 * GIB)
    said: list[str] = []

    def ask(number: int) -> None:
        said.append(charged.refusal(things.claim(f"c{number}", charged.name, core=10)))

    hands = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for hand in hands:
        hand.start()
    for hand in hands:
        hand.join()
    assert Counter(word == "" for word in said) == {True: 10, False: 10}, said
    assert used(real_cast.acme)["core_percent"] == 100
    assert_books_agree()


def test_a_refused_growth_happens_when_another_share_ends(site: Site, cast: Cast) -> None:
    give(cast.acme, core_percent=None, memory_mib=None)
    for name in ("one", "other"):
        site.make(things.claim(name, site.name))
        site.make(things.pod(f"p-{name}", site.name, claim=name))
    site.until(lambda: {site.condition(name)[0] for name in ("one", "other")} == {"True"})
    path = f"{API}/namespaces/{site.name}/resourceclaims"
    site.client.patch(f"{path}/one", {"metadata": {"annotations": {requests.CORE_KEY: "90"}}})
    site.until(lambda: site.condition("one")[1] == "Refused")
    remove(site.client, site.name, "p-other")
    site.client.delete(f"{path}/other")
    site.until(lambda: site.condition("one")[0] == "True" and site.condition("one")[2].get("core") == 90)
    assert_books_agree()


def test_a_burst_fills_the_gpus_and_no_more(site: Site, cast: Cast) -> None:
    give(cast.acme, core_percent=None, memory_mib=None)
    # Somebody else has a part of the GPU.
    other, _ = placed(cast, site.machine, core_request=25, memory_mib=GIB)
    site.until(lambda: site.left() == (75, 23 * GIB))
    template = {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": "tenth", "namespace": site.name}, "spec": {"spec": things.spec(core=10, memory="1Gi")},
    }  # fmt: skip
    site.make(template)
    for number in range(10):
        site.make(things.pod(f"p{number}", site.name, template="tenth"))
    rows = DeviceClaim.objects.live().filter(namespace=site.name)
    site.until(lambda: rows.filter(claim__state="active").count() == 7)
    assert Gpu.objects.get().core_used == 95
    lifecycle.release_claim(principal=SYSTEM, claim=other)
    site.until(lambda: rows.filter(claim__state="active").count() == 10)
    assert Gpu.objects.get().core_used == 100
    site.machine.node.refresh_from_db()
    remove(site.client, site.name, *(f"p{number}" for number in range(10)))
    site.until(lambda: not rows.exists() and Gpu.objects.get().core_used == 0)
    assert_books_agree()


def test_a_cordoned_gpu_is_tainted(site: Site, cast: Cast) -> None:
    give(cast.acme, core_percent=None, memory_mib=None)
    Gpu.objects.update(cordoned=True)
    site.until(lambda: site.slice().get("spec", {}).get("devices", [{}])[0].get("taints") is not None)
    site.make(things.claim("one", site.name))
    site.make(things.pod("p", site.name, claim="one"))
    site.until(lambda: DeviceClaim.objects.filter(claim__state="allocating").exists())
    assert "nodeName" not in pod(site.client, site.name, "p")["spec"]
    Gpu.objects.update(cordoned=False)
    site.until(lambda: DeviceClaim.objects.filter(claim__state="active").exists())
    # A slice that somebody removes is written again.
    site.client.delete(f"/apis/resource.k8s.io/v1/resourceslices/{site.slice()['metadata']['name']}")
    site.until(lambda: bool(site.slice()))
