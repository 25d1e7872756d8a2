"""The ASGI application: HTTP by Django behind middleware for static files and waiting, and websockets."""

import os
from importlib import import_module
from typing import Any

import django
from django.conf import settings

from gpucloud.fastpath import gc_tuning

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpucloud.settings")
gc_tuning.pause_collections()
django.setup(set_prefix=False)

# Imported after Django is set up, because they import models.
from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from channels.security.websocket import AllowedHostsOriginValidator  # noqa: E402
from django.urls import path  # noqa: E402

from apps.console.shell.live import LiveConsumer  # noqa: E402
from apps.groups.waiting import WaitForGroup  # noqa: E402
from apps.jobs.waiting import WaitForOutput  # noqa: E402
from apps.nodes.gateway.consumer import AgentConsumer  # noqa: E402
from apps.notebooks.gate import NotebookHosts  # noqa: E402
from apps.scheduling.waiting import WaitForClaim  # noqa: E402
from apps.tunnels.sockets import serve_client, serve_node  # noqa: E402
from gpucloud.api.bodies import BoundedBody  # noqa: E402
from gpucloud.api.websockets import NoSuchSocket, TryAgainLater  # noqa: E402
from gpucloud.fastpath.serving import SingleThreadHandler  # noqa: E402
from gpucloud.fastpath.static_files import StaticFilesMiddleware  # noqa: E402

# The published types of Channels' routing do not include its own consumers.
route: Any = path
pages: Any = AllowedHostsOriginValidator(AuthMiddlewareStack(LiveConsumer.as_asgi()))
# For the session of a page; who has a token has none.
terminals: Any = AuthMiddlewareStack(serve_client)
# These handle HTTP only; ASGI's type covers every protocol.
bounded: Any = BoundedBody(SingleThreadHandler())
for_output: Any = WaitForOutput(bounded)
for_groups: Any = WaitForGroup(for_output)
waiting: Any = WaitForClaim(for_groups)
websockets = URLRouter(
    [
        route("ws/agent/", AgentConsumer.as_asgi()),
        route("ws/live/", pages),
        route("ws/jobs/<uuid:uid>/terminal/", terminals),
        route("ws/tunnel/", serve_node),
        route("<path:unknown>", NoSuchSocket.as_asgi()),
    ]
)
console: Any = ProtocolTypeRouter({"http": StaticFilesMiddleware(waiting), "websocket": TryAgainLater(websockets)})
application: Any = NotebookHosts(console)

# The views, before the first request needs them.
import_module(settings.ROOT_URLCONF)
# Settings, models, URLs and templates live as long as the process; later objects belong to connections and requests.
gc_tuning.freeze_startup_objects()
