"""TLS between machines that share no certificate authority: a certificate of one's own, known by its fingerprint.

The listening side makes a key and a certificate; the server, which both sides trust, tells the fingerprint.
"""

import hashlib
import hmac
import os
import socket
import ssl
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

# Of the certificate. The fingerprint is what counts; a new one is made at the start of each agent or ticket.
LIFE_DAYS = 3650


class Failed(Exception):
    """A connection or certificate that could not be made; the message says why."""


class Identity(NamedTuple):
    """A private key and its certificate, as PEM."""

    key: str
    certificate: str

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate, in hexadecimal digits."""
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(self.certificate)).hexdigest()


def make_identity() -> Identity:
    """Make a key and its certificate. Raises Failed without openssl."""
    with tempfile.TemporaryDirectory() as place:
        key, certificate = Path(place) / "key", Path(place) / "certificate"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days"]
        command += [str(LIFE_DAYS), "-subj", "/CN=gpucloud", "-keyout", str(key), "-out", str(certificate)]
        try:
            subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError) as error:
            raise Failed("openssl, which makes the certificate, is not on this machine or fails.") from error
        return Identity(key.read_text(), certificate.read_text())


def server_context(identity: Identity) -> ssl.SSLContext:
    """Return the listening side's context; the key touches no disk."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    descriptor = os.memfd_create("identity", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, (identity.key + identity.certificate).encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context


def client_context() -> ssl.SSLContext:
    """Return the calling side's context, which leaves it to `require` whose certificate it is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def require(stream: ssl.SSLSocket, fingerprint: str, words: str) -> None:
    """Raise Failed with these words unless the other side has the certificate of this fingerprint."""
    shown = hashlib.sha256(stream.getpeercert(binary_form=True) or b"").hexdigest()
    if not hmac.compare_digest(shown, fingerprint):
        raise Failed(words)


def listen(address: str, *, backlog: int) -> socket.socket:
    """Listen at HOST:PORT. Raises OSError."""
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host.strip("[]"), int(port)), family=family, backlog=backlog)
