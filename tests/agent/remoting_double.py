"""A remoting server in the place of the real one: it listens at LUPINE_PORT, and forks for each connection (x-lupine).

Lines ask it: `echo TEXT` is repeated, `mirror COUNT` inverts so many bytes, `blob COUNT` sends them, `take COUNT`
says their checksum, `env NAME` shows a variable; `pid`, `uid` and `routes` are numbers. Standard library only.
"""

import hashlib
import os
import signal
import socket
from pathlib import Path

INVERTED = bytes(255 - byte for byte in range(256))


def serve(connection: socket.socket) -> None:
    """Answer the lines of one connection."""
    with connection, connection.makefile("rwb") as stream:
        for line in stream:
            name, _, rest = line.decode().strip().partition(" ")
            if name == "blob":
                stream.write(os.urandom(1024) * (int(rest) // 1024))
            elif name == "mirror":
                left = int(rest)
                while left and (part := stream.read1(min(left, 1 << 16))):
                    left -= len(part)
                    stream.write(part.translate(INVERTED))
                    stream.flush()
            elif name == "take":
                digest, left = hashlib.sha256(), int(rest)
                while left and (part := stream.read(min(left, 1 << 20))):
                    digest.update(part)
                    left -= len(part)
                stream.write(digest.hexdigest().encode() + b"\n")
            else:
                found = {
                    "echo": lambda: rest,  # noqa: B023 - called at once
                    "env": lambda: os.environ.get(rest, ""),  # noqa: B023 - likewise
                    "pid": lambda: str(os.getpid()),
                    "uid": lambda: str(os.getuid()),
                    "routes": lambda: str(len(Path("/proc/net/route").read_text().splitlines()) - 1),
                }[name]()
                stream.write(found.encode() + b"\n")
            stream.flush()


def main() -> None:
    """Fork for each connection."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.create_server(("0.0.0.0", int(os.environ["LUPINE_PORT"])))
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            serve(connection)
            os._exit(0)
        connection.close()


if __name__ == "__main__":
    main()
