"""`python -m gpucloud.server`: serve pages, the API and the websockets of agents and pages until SIGTERM.

Takes uvicorn's options; the defaults are what this application needs.
Example: python -m gpucloud.server --host 0.0.0.0 --port 8000 --workers 2
"""

import resource
import sys

from uvicorn.main import main

APPLICATION = "gpucloud.asgi:application"
# A node's frame has at most 1 MiB, and no websocket message here is larger.
LARGEST_FRAME_BYTES = 1 << 20
# uvicorn kills a worker that does not answer its parent in time. On a busy machine, importing the application holds the
# interpreter lock for longer than uvicorn's 5 seconds.
WORKER_SECONDS = 60
DEFAULTS = {
    "http": "gpucloud.server.protocol:BoundedProtocol",
    "ws": "websockets-sansio",
    "ws_max_size": LARGEST_FRAME_BYTES,
    # One read of compressed messages can be a thousand times its size, before any of them is taken.
    "ws_per_message_deflate": False,
    "access_log": False,
    # A page's stream ends at once; a request in progress has this long.
    "timeout_graceful_shutdown": 10,
    "timeout_worker_healthcheck": WORKER_SECONDS,
}

# Each connection is a file: the usual limit of 1,024 is fewer than the agents and browsers of one process.
MOST_FILES = 65_536


def raise_file_limit() -> None:
    """Raise this process's limit of open files to MOST_FILES, or as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    raise_file_limit()
    main(args=[APPLICATION, *sys.argv[1:]], prog_name="python -m gpucloud.server", default_map=DEFAULTS)
