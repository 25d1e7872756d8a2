"""A listener whose certificate is renewed: new connections get it without a restart, and never half of a pair."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from apps.clusters.admission import certificates
from apps.clusters.extender.listener import Certificate
from tests.clusters import authority


def renew(directory: Path) -> None:
    certificates.rotate(directory, ["127.0.0.1"], now=datetime.now(UTC), force=True)


def on_disk(directory: Path) -> int:
    return x509.load_pem_x509_certificate((directory / "tls.crt").read_bytes()).serial_number


class Listener:
    """A listener that shakes hands and echoes, with one context for all connections."""

    def __init__(self, directory: Path, *, clients: Path | None = None) -> None:
        """Take `clients`, the authority of clients' certificates."""
        renew(directory)
        self.directory = directory
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        files = directory / "tls.crt", directory / "tls.key"
        context.load_cert_chain(*files)
        if clients is not None:
            context.load_verify_locations(clients)
            context.verify_mode = ssl.CERT_REQUIRED
        self.certificate = Certificate(context, *files, authority=clients)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self._context = context
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                raw, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(raw,)).start()

    def _echo(self, raw: socket.socket) -> None:
        with raw, suppress(OSError), self._context.wrap_socket(raw, server_side=True) as connection:
            while data := connection.recv(100):
                connection.sendall(data)

    def connect(self, certificate: tuple[Path, Path] | None = None) -> ssl.SSLSocket:
        client = ssl.create_default_context(cafile=str(self.directory / "ca-bundle.crt"))
        if certificate is not None:
            client.load_cert_chain(*certificate)
        raw = socket.create_connection(self.socket.getsockname())
        return client.wrap_socket(raw, server_hostname="127.0.0.1")

    def answers(self, certificate: tuple[Path, Path] | None = None) -> bool:
        """Return True if it accepts a client with this certificate."""
        try:
            with self.connect(certificate) as connection:
                connection.sendall(b"let me in")
                return connection.recv(100) == b"let me in"
        except OSError:
            return False

    def serial(self) -> int:
        with self.connect() as connection:
            found = connection.getpeercert(binary_form=True)
        assert found is not None
        return x509.load_der_x509_certificate(found).serial_number


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Listener]:
    made = Listener(tmp_path)
    yield made
    made.socket.close()


def test_a_renewed_certificate_is_what_new_connections_get(door: Listener) -> None:
    first = door.serial()
    with door.connect() as standing:
        assert not door.certificate.refresh()
        renew(door.directory)
        assert door.serial() == first
        assert door.certificate.refresh()
        assert door.serial() == on_disk(door.directory) != first
        standing.sendall(b"still here")
        assert standing.recv(100) == b"still here"
    assert not door.certificate.refresh()


def test_half_a_pair_is_not_taken(door: Listener) -> None:
    first, before = door.serial(), (door.directory / "tls.crt").read_bytes()
    renew(door.directory)
    after = (door.directory / "tls.crt").read_bytes()
    for half in (before, b"", b"nonsense"):
        (door.directory / "tls.crt").write_bytes(half)
        assert not door.certificate.refresh()
        assert door.serial() == first
    (door.directory / "tls.crt").unlink()
    assert not door.certificate.refresh()
    (door.directory / "tls.crt").write_bytes(after)
    assert door.certificate.refresh()
    assert door.serial() == on_disk(door.directory)


def test_an_authority_of_clients_that_is_replaced_is_believed_no_longer(tmp_path: Path) -> None:
    before, after = (authority.make(tmp_path / name) for name in ("before", "after"))
    old, new = authority.client(before, "kube-scheduler"), authority.client(after, "kube-scheduler")
    believed = tmp_path / "clients.crt"
    believed.write_bytes((before / "ca.crt").read_bytes())
    door = Listener(tmp_path / "door", clients=believed)
    assert (door.answers(old), door.answers(new), door.answers()) == (True, False, False)
    with door.connect(old) as standing:
        believed.write_bytes((after / "ca.crt").read_bytes())
        assert (door.answers(old), door.certificate.refresh()) == (True, True)
        assert (door.answers(old), door.answers(new), door.answers()) == (False, True, False)
        standing.sendall(b"still here")
        assert standing.recv(100) == b"still here"
    believed.write_text("nonsense")
    assert not door.certificate.refresh()
    assert door.answers(new)
    door.socket.close()
