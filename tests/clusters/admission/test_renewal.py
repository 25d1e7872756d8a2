"""A listener whose certificate is renewed: new connections get it without a restart, and never half of a pair."""

import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from apps.clusters.admission import certificates
from apps.clusters.extender.listener import Certificate


def renew(directory: Path) -> None:
    certificates.rotate(directory, ["127.0.0.1"], now=datetime.now(UTC), force=True)


def on_disk(directory: Path) -> int:
    return x509.load_pem_x509_certificate((directory / "tls.crt").read_bytes()).serial_number


class Door:
    """Shakes hands and echoes, with one context for all connections."""

    def __init__(self, directory: Path) -> None:
        renew(directory)
        self.directory = directory
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
        self.certificate = Certificate(context, directory / "tls.crt", directory / "tls.key")
        self.socket = socket.create_server(("127.0.0.1", 0))
        self._context = context
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                raw, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(self._context.wrap_socket(raw, server_side=True),)).start()

    def _echo(self, connection: ssl.SSLSocket) -> None:
        with connection:
            while data := connection.recv(100):
                connection.sendall(data)

    def connect(self) -> ssl.SSLSocket:
        client = ssl.create_default_context(cafile=str(self.directory / "ca-bundle.crt"))
        raw = socket.create_connection(self.socket.getsockname())
        return client.wrap_socket(raw, server_hostname="127.0.0.1")

    def serial(self) -> int:
        with self.connect() as connection:
            found = connection.getpeercert(binary_form=True)
        assert found is not None
        return x509.load_der_x509_certificate(found).serial_number


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    made = Door(tmp_path)
    yield made
    made.socket.close()


def test_a_renewed_certificate_is_what_new_connections_get(door: Door) -> None:
    first = door.serial()
    with door.connect() as standing:
        assert not door.certificate.look()
        renew(door.directory)
        assert door.serial() == first
        assert door.certificate.look()
        assert door.serial() == on_disk(door.directory) != first
        standing.sendall(b"still here")
        assert standing.recv(100) == b"still here"
    assert not door.certificate.look()


def test_half_a_pair_is_not_taken(door: Door) -> None:
    first, before = door.serial(), (door.directory / "tls.crt").read_bytes()
    renew(door.directory)
    after = (door.directory / "tls.crt").read_bytes()
    for half in (before, b"", b"nonsense"):
        (door.directory / "tls.crt").write_bytes(half)
        assert not door.certificate.look()
        assert door.serial() == first
    (door.directory / "tls.crt").unlink()
    assert not door.certificate.look()
    (door.directory / "tls.crt").write_bytes(after)
    assert door.certificate.look()
    assert door.serial() == on_disk(door.directory)
