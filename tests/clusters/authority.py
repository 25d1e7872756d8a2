"""A certificate authority for both sides of TLS on loopback: `certificates` makes it and the server's pair."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from apps.clusters.admission import certificates


def make(directory: Path) -> Path:
    """`ca.crt`, `ca.key`, `tls.crt`, `tls.key` for loopback in this directory."""
    certificates.rotate(directory, ["127.0.0.1", "localhost"], now=datetime.now(UTC))
    return directory


def client(directory: Path, user: str, *groups: str) -> tuple[Path, Path]:
    """Return a client certificate and its key for this Kubernetes user."""
    authority = x509.load_pem_x509_certificate((directory / "ca.crt").read_bytes())
    signing = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), password=None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    names = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
    names += [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(names))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
        .sign(signing, hashes.SHA256())
    )
    files = directory / f"{user}.crt", directory / f"{user}.key"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = serialization.PrivateFormat.PKCS8
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption()))
    return files
