"""Views of /nodes/{name}/lift-fence/ and /gpus/{uuid}/clear/, which agents receive with their desired state."""

from apps.nodes.api.views import GpuView, NodeView
from apps.quotas.api.methods import orders
from apps.scheduling.services.claims.health import clear_gpu, lift_fence


class NodeLiftFence(NodeView):
    """The order to lift the fence of a node."""

    post = orders(
        lift_fence,
        "node",
        "Let a fenced node take claims again. Only a process that is found after now fences it anew.",
    )


class GpuClear(GpuView):
    """The order to clear an XID error that only a reset cures."""

    post = orders(
        clear_gpu, "gpu", "Declare the GPU cured, after a reset. Its agent confirms it: see the GPU's conditions."
    )
