"""Certificates that name a role, made as an operator's certificate authority would make them."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Pair:
    """The PEM files of a certificate, of its key, and of the authority that issued it."""

    cert: Path
    key: Path
    ca: Path

    def credentials(self) -> grpc.ChannelCredentials:
        """Return gRPC credentials for a client that presents this certificate."""
        files = (self.ca, self.key, self.cert)
        return grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))

    def options(self) -> tuple[str, ...]:
        """Return the TLS options of ``heddle`` and ``heddle-agent`` that name these files."""
        words = ("--tls-ca", self.ca, "--tls-cert", self.cert, "--tls-key", self.key)
        return tuple(map(str, words))


_SIGNS = x509.KeyUsage(
    key_cert_sign=True, crl_sign=True, digital_signature=False, content_commitment=False,
    key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
    decipher_only=False,
)  # fmt: skip


class Authority:
    """A certificate authority whose files are in a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name(f"{name} of a test")
        self._id = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self.ca = folder / f"{name}.pem"
        basic = x509.BasicConstraints(ca=True, path_length=None)
        made = _builder(self._subject, self._subject, self._key).add_extension(basic, critical=True)
        made = made.add_extension(_SIGNS, critical=True).add_extension(self._id, critical=False)
        self._write(self.ca, made.sign(self._key, hashes.SHA256()))

    def server(self, name: str = "server") -> Pair:
        """Issue a server certificate for "localhost"."""
        return self.issue(name, x509.DNSName("localhost"))

    def role(self, path: str) -> Pair:
        """Issue a client certificate for a role, such as "operator/ann" or "agent/f1/l0"."""
        uri = x509.UniformResourceIdentifier(f"spiffe://heddle/{path}")
        return self.issue(path.replace("/", "-"), uri)

    def issue(self, name: str, *names: x509.GeneralName, days: float = 1) -> Pair:
        """Issue a certificate with these alternative names; with ``days`` below 0, it has ended."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name), self._subject, key, days)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._id)
        builder = builder.add_extension(issuer, critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}-key.pem", self.ca)
        self._write(pair.cert, builder.sign(self._key, hashes.SHA256()))
        form = (
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        pair.key.write_bytes(key.private_bytes(*form))
        return pair

    @staticmethod
    def _write(path: Path, certificate: x509.Certificate) -> None:
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float = 1
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1, days=max(0.0, -days)))
        .not_valid_after(now + dt.timedelta(days=days))
    )
