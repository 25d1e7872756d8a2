"""TCP ports of loopback for programs that tests start."""

import random
import socket

FIRST, LAST = 20_000, 29_999
# Descriptors of this process's reservations, open until it ends.
_reserved: list[int] = []


def free_port() -> int:
    """Return a free port that nothing takes by chance before the program listens, which may be seconds later.

    It is below the ports that the kernel gives, by default, to connections and to listeners on port 0. Other tests,
    also of other processes, do not get it while this process lives: a name of an abstract Unix socket, which belongs to
    the same network namespace, is taken for it. Raises OSError if none is free.
    """
    ports = list(range(FIRST, LAST + 1))
    random.shuffle(ports)
    for port in ports:
        reservation = socket.socket(socket.AF_UNIX)
        try:
            reservation.bind(f"\0gpucloud-test-port-{port}")
            with socket.socket() as trial:
                # As a server does: its port is free although old connections of it linger.
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(("127.0.0.1", port))
        except OSError:
            reservation.close()
            continue
        _reserved.append(reservation.detach())
        return port
    raise OSError(f"no port from {FIRST} to {LAST} is free")
