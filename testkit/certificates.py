"""Certificates for tests: a small authority, and certificates that it signs. Keys are EC, which are cheap to make."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

_DAY: Final = datetime.timedelta(days=1)

SERVER: Final = ExtendedKeyUsageOID.SERVER_AUTH
CLIENT: Final = ExtendedKeyUsageOID.CLIENT_AUTH


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its key, in PEM files.

    Attributes:
        certificate, key: one file each.
        both: one file with key and certificate, as Kafka's PEM key stores need it.
    """

    certificate: Path
    key: Path
    both: Path


class Authority:
    """Signs certificates. Peers have to trust its own certificate.

    Attributes:
        certificate: its PEM file.
    """

    def __init__(self, folder: Path, name: str = "ca") -> None:
        """Makes an authority.

        Args:
            folder: an existing folder for all files.
            name: name of the authority and its file.
        """
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Test {name}")])
        builder = _builder(self._name, self._name, self._key.public_key())
        self._certificate = builder.add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        ).sign(self._key, hashes.SHA256())
        self.certificate = folder / f"{name}.pem"
        self.certificate.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        file: str,
        subject: x509.Name | str,
        *,
        hosts: tuple[str, ...] = (),
        usage: ObjectIdentifier | None = None,
        valid_from: datetime.datetime | None = None,
        valid_until: datetime.datetime | None = None,
    ) -> KeyPair:
        """Makes a key and signs a certificate for it.

        Args:
            file: stem of the files' names.
            subject: a name, or the text of a common name.
            hosts: names and addresses of a server.
            usage: its allowed use; None: both uses.
            valid_from: default: a day ago.
            valid_until: default: in ten days.
        """
        if isinstance(subject, str):
            subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(self._name, subject, key.public_key(), valid_from, valid_until)
        usages = [SERVER, CLIENT] if usage is None else [usage]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(name) for name in hosts]), critical=False
            )
        certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        pair = KeyPair(
            self._folder / f"{file}.crt", self._folder / f"{file}.key", self._folder / f"{file}.pem"
        )
        pair.certificate.write_bytes(certificate)
        pair.key.write_bytes(private)
        pair.both.write_bytes(private + certificate)
        return pair

    def revoke(self, *revoked: KeyPair, until: datetime.datetime | None = None) -> Path:
        """Writes a revocation list.

        Args:
            revoked: certificates of this authority.
            until: when the list expires; default: in ten days.
        """
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateRevocationListBuilder(
            issuer_name=self._name, last_update=now - _DAY, next_update=until or now + 10 * _DAY
        )
        for pair in revoked:
            number = x509.load_pem_x509_certificate(pair.certificate.read_bytes()).serial_number
            entry = x509.RevokedCertificateBuilder(number, now - _DAY).build()
            builder = builder.add_revoked_certificate(entry)
        path = self.certificate.with_suffix(".crl")
        path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return path


def _builder(
    issuer: x509.Name,
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    valid_from: datetime.datetime | None = None,
    valid_until: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(valid_from or now - _DAY)
        .not_valid_after(valid_until or now + 10 * _DAY)
    )


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
