"""Changes of single GPUs by operators."""

from django.db import transaction

from apps.nodes.models import Gpu, Node
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from gpucloud.api import etags


@transaction.atomic
def cordon_gpu(*, principal: Principal, gpu: Gpu, cordoned: bool, versions: etags.Versions = None) -> Gpu:
    """Cordon the GPU, or uncordon it; repeatable. The claims on it stay, and can be resized and released.

    Raises PreconditionFailed.
    """
    principal.require_operator()
    gpu = etags.lock(gpu, versions, "node__pool")
    if gpu.cordoned == cordoned:
        return gpu
    # The database notifies the scheduler of the changed row.
    gpu.change(cordoned=cordoned)
    # The cached queue of a large pool is used only while the versions of its nodes stay.
    Node.objects.select_for_update(no_key=True).get(pk=gpu.node_id).change()
    audit.record(
        principal, "gpu.cordon" if cordoned else "gpu.uncordon", gpu.node, after={"gpu": gpu.uuid, "index": gpu.index}
    )
    return gpu
