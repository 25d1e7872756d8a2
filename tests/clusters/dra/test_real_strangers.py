"""ResourceClaims as others write them, on a real API server, its controllers and kube-scheduler: each works, or is
refused in words that its author reads.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from apps.clusters.core.devices import DEVICE_CLASS
from apps.clusters.kube.client import Refused
from apps.clusters.models import DeviceClaim
from tests.cast import Cast, assert_books_agree, give, used
from tests.clusters.control_plane import ControlPlane
from tests.clusters.dra import things
from tests.clusters.dra.site import Site
from tests.clusters.dra.test_real_devices import charged

__all__ = ["charged"]
pytestmark = [pytest.mark.control_plane, pytest.mark.serial, pytest.mark.timeout(300)]
Json = dict[str, Any]
# The fourth GPU, by its number and by what it has left.
FOURTH = (
    "device.attributes['gpucloud.io'].index == 3 && "
    "device.capacity['gpucloud.io'].memory.compareTo(quantity('20Gi')) >= 0"
)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Start a control plane with the controllers of Jobs."""
    config = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    directory = tmp_path_factory.mktemp("kube")
    with ControlPlane(directory, scheduler_config=config, controllers=("job-controller",)) as it:
        yield it


def use_template(site: Site, name: str, spec: Json) -> Json:
    """Create a ResourceClaimTemplate; return the spec of a pod that uses it."""
    metadata = {"name": name, "namespace": site.name}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    site.make({**kind, "metadata": metadata, "spec": {"spec": spec}})
    return dict(things.pod(name, site.name, template=name)["spec"])


def run(site: Site, name: str, spec: Json) -> list[int]:
    """Create a pod with such a ResourceClaim; return the indexes of the GPUs that its claim gets."""
    site.make({"metadata": {"name": name, "namespace": site.name}, "spec": use_template(site, name, spec)})
    mine = DeviceClaim.objects.live().filter(name__startswith=f"{name}-gpu-", claim__state="active")
    site.until(mine.exists)
    claim = mine.get().claim
    assert claim is not None
    return sorted(claim.assignments.values_list("gpu__index", flat=True))


def test_requests_of_all_kinds_work_or_are_refused_in_words(charged: Site, real_cast: Cast) -> None:
    give(real_cast.acme, core_percent=None, memory_mib=None)
    charged.until(lambda: charged.left()[0] == 100)
    # Several devices are several GPUs, with a constraint that says so and without.
    assert len(set(run(charged, "two", things.spec(count=2)))) == 2
    distinct = things.spec(count=2, core=20)
    distinct["devices"]["constraints"] = [{"distinctAttribute": "gpucloud.io/uuid"}]
    assert len(set(run(charged, "distinct", distinct))) == 2
    assert run(charged, "chosen", things.spec(selectors=[{"cel": {"expression": FOURTH}}])) == [3]
    # All of a Job's pods have a ResourceClaim of their own.
    spec = use_template(charged, "tenth", things.spec(core=10)) | {"restartPolicy": "Never"}
    job = {"metadata": {"name": "job"}, "spec": {"parallelism": 3, "completions": 3, "template": {"spec": spec}}}
    charged.client.post(f"/apis/batch/v1/namespaces/{charged.name}/jobs", job)
    running = DeviceClaim.objects.live().filter(name__startswith="job-", claim__state="active")
    charged.until(lambda: running.count() == 3)
    assert used(real_cast.acme)["core_percent"] == 2 * 30 + 2 * 20 + 30 + 3 * 10
    # DeviceClasses are extended resources, too, which cannot say how large a share is.
    limits = {f"deviceclass.resource.kubernetes.io/{DEVICE_CLASS}": "1"}
    container = {"name": "main", "image": "cuda", "resources": {"limits": limits}}
    extended = {"metadata": {"name": "extended", "namespace": charged.name}, "spec": {"containers": [container]}}
    with pytest.raises(Refused, match="use a ResourceClaim"):
        charged.make(extended)
    assert "ExactCount" in charged.refusal(things.claim("all", charged.name, allocationMode="All"))
    first = things.claim("first", charged.name)
    sizes = [{"name": "a", "deviceClassName": DEVICE_CLASS, "capacity": {"requests": {"memory": "1Gi"}}}]
    first["spec"]["devices"]["requests"] = [{"name": "gpu", "firstAvailable": sizes}]
    assert "use exactly" in charged.refusal(first)
    path = f"/api/v1/namespaces/{charged.name}"
    charged.client.patch(path, {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}})
    charged.until(lambda: "no adminAccess" in charged.refusal(things.claim("admin", charged.name, adminAccess=True)))
    assert_books_agree()
    names = [json.loads(bytes(raw))["metadata"]["name"] for raw in charged.client.list(f"{path}/pods")[0]]
    assert len(names) == 3 + 3
