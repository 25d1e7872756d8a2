"""The first frame of a connection: the agent, its machine, and what it is able to do."""

import socket
from collections.abc import Sequence

from msgspec import UNSET

from agent import VERSION, wire
from agent.host.gpus import Inventory
from agent.settings import Settings
from agent.suspender import Suspender


async def build(
    settings: Settings,
    inventory: Inventory,
    checks: Sequence[wire.Check],
    *,
    arbiter: bool,
    backends: Sequence[wire.BackEnd],
    dra: bool,
    suspender: Suspender,
    remote: wire.RemoteEndpoint | None = None,
) -> wire.Hello:
    """Return the hello. `arbiter`: one is installed. `dra`: a kubelet uses the driver. `backends`: beside turns."""
    return wire.Hello(
        agent_version=VERSION,
        driver_version=inventory.driver_version,
        hostname=socket.gethostname(),
        run_dir=str(settings.run_dir),
        library=str(settings.library.path),
        simulated=settings.library.simulated_node is not None,
        arbiter=arbiter,
        gpus=list(inventory.gpus),
        checks=list(checks),
        kubernetes_node=settings.kubelet.node if settings.kubelet is not None else UNSET,
        dra=dra or UNSET,
        suspend=await suspender.is_able() or UNSET,
        host_memory_bytes=await suspender.offer_bytes(),
        move=await suspender.can_move() or UNSET,
        carry=await suspender.can_carry() or UNSET,
        restart=True,
        backends=list(backends),
        jobs=settings.jobs is not None or UNSET,
        images=settings.jobs_engine is not None or UNSET,
        tunnels=settings.jobs is not None or UNSET,
        shared_instances=True,
        remote=remote or UNSET,
        lends_memory=arbiter or UNSET,
    )
