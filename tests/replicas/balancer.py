"""TCP balancer: each connection goes to the web server that has the fewest; one that refuses is passed over.

``python -m tests.replicas.balancer PORT BACKEND…`` listens on loopback until SIGTERM. It knows no sessions and keeps no
state, like a cloud's TCP load balancer: nothing that works behind it depends on the server that a client had before.
"""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress

HOST = "127.0.0.1"
CHUNK_BYTES = 1 << 16


class Balancer:
    """Open connections by backend port."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.open = dict.fromkeys(ports, 0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one client's connection; hang up if no backend accepts it."""
        for port in sorted(self.open, key=lambda one: self.open[one]):
            try:
                inner_reader, inner_writer = await asyncio.open_connection(HOST, port)
            except OSError:
                continue
            self.open[port] += 1
            try:
                await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))
            finally:
                self.open[port] -= 1
                inner_writer.close()
                writer.close()
            return
        writer.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy until one side ends, then end the other."""
    with suppress(OSError):
        while data := await source.read(CHUNK_BYTES):
            target.write(data)
            await target.drain()
    target.close()


async def main() -> None:
    port, *backends = map(int, sys.argv[1:])
    server = await asyncio.start_server(Balancer(backends).serve, HOST, port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
