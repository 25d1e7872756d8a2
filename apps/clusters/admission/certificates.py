"""Certificates of the webhooks: a certificate authority of our own and the server certificate that it signs.

The directory holds `ca.crt`, `ca.key`, `tls.crt`, `tls.key` and `ca-bundle.crt`. The bundle, which clusters trust,
contains the present authority and the one before it, so neither a server that has not read its new certificate yet nor
a cluster that does not have the new authority yet is cut off.
"""

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFE = timedelta(days=3650)
CERTIFICATE_LIFE = timedelta(days=365)
# Renewed when a third of the life is left: that leaves months to notice that renewal has stopped.
RENEWED_AT = 1 / 3
# Certificates begin an hour early because clocks differ.
EARLIER = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Signed:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def rotate(directory: Path, names: Sequence[str], *, now: datetime, force: bool = False) -> list[str]:
    """Create missing certificates, renew those that are due or name other hosts, and return the files written.

    `names` are the DNS names and IP addresses of the server. `force` renews the server certificate, not the authority.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    written = []
    authority = _read(directory, "ca")
    if authority is None or _is_due(authority.certificate, now):
        before = authority
        authority = _make_authority(now)
        _write(directory, "ca", authority)
        bundle = [authority] if before is None else [authority, before]
        _put(directory / "ca-bundle.crt", b"".join(_pem(signed.certificate) for signed in bundle), 0o644)
        written += ["ca.crt", "ca.key", "ca-bundle.crt"]
        force = True
    server = _read(directory, "tls")
    if force or server is None or _is_due(server.certificate, now) or _names(server.certificate) != set(names):
        _write(directory, "tls", _sign_server(authority, names, now))
        written += ["tls.crt", "tls.key"]
    return written


def bundle(directory: Path) -> bytes:
    """Return the authorities that a cluster trusts, as PEM."""
    return (directory / "ca-bundle.crt").read_bytes()


def _is_due(certificate: x509.Certificate, now: datetime) -> bool:
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return now > certificate.not_valid_after_utc - life * RENEWED_AT


def _make_authority(now: datetime) -> Signed:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gpucloud webhooks {now:%Y-%m-%d}")])
    builder = (
        _builder(name, name, key, now, AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
    )
    return Signed(builder.sign(key, hashes.SHA256()), key)


def _sign_server(authority: Signed, names: Sequence[str], now: datetime) -> Signed:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpucloud webhooks")])
    builder = (
        _builder(subject, authority.certificate.subject, key, now, CERTIFICATE_LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    return Signed(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names(certificate: x509.Certificate) -> set[str]:
    said = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {*said.get_values_for_type(x509.DNSName), *map(str, said.get_values_for_type(x509.IPAddress))}


def _read(directory: Path, name: str) -> Signed | None:
    try:
        certificate = x509.load_pem_x509_certificate((directory / f"{name}.crt").read_bytes())
        key = serialization.load_pem_private_key((directory / f"{name}.key").read_bytes(), password=None)
    except (FileNotFoundError, ValueError):
        return None
    matches = isinstance(key, ec.EllipticCurvePrivateKey) and key.public_key() == certificate.public_key()
    return Signed(certificate, key) if matches and isinstance(key, ec.EllipticCurvePrivateKey) else None


def _write(directory: Path, name: str, signed: Signed) -> None:
    """Write the key, then the certificate.

    A server that reads between the two finds a pair that does not match, and keeps its old one.
    """
    private = signed.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _put(directory / f"{name}.key", private, 0o600)
    _put(directory / f"{name}.crt", _pem(signed.certificate), 0o644)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _put(path: Path, data: bytes, mode: int) -> None:
    """Write the file atomically, with its final mode from the beginning."""
    beside = path.with_suffix(path.suffix + ".new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
