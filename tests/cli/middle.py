"""A forwarder between a client and the platform, which the test can cut, or make deaf."""

import contextlib
import socket
import threading
from typing import Self
from urllib.parse import urlsplit


class Middle:
    """A forwarder of bytes both ways. `cut` breaks connections and refuses new ones; `mend` lets them through again."""

    def __init__(self, url: str) -> None:
        there = urlsplit(url)
        assert there.hostname is not None
        assert there.port is not None
        self._there = (there.hostname, there.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._whole = True
        # Number of answers to lose: the request arrives, its answer is dropped.
        self.lose_answers = 0
        # Requests that begin like this get no answer while `flowing` is cleared, which the first of them does.
        self.hold_answer_of: bytes | None = None
        self.flowing = threading.Event()
        self.flowing.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._listener.close()

    def cut(self) -> None:
        """Break all connections from now on."""
        self._whole = False
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def mend(self) -> None:
        """Let connections through again."""
        self._whole = True

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here = self._listener.accept()[0]
                if not self._whole:
                    here.close()
                    continue
                there = socket.create_connection(self._there)
                self._open += [here, there]
                threading.Thread(target=self._pump, args=(here, there, False), daemon=True).start()
                threading.Thread(target=self._pump, args=(there, here, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if answers and self.lose_answers > 0:
                    self.lose_answers -= 1
                    break
                if not answers and self.hold_answer_of and data.startswith(self.hold_answer_of):
                    self.flowing.clear()
                if answers:
                    self.flowing.wait(60)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
