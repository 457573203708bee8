"""Certificates for tests: authorities, and what they sign."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from msgspec import Struct

DAY = datetime.timedelta(days=1)


class Pair(Struct, frozen=True):
    """A certificate and its key, in two files."""

    cert: str
    key: str

    def replace_with(self, other: Pair) -> None:
        """Renew both files as tools do: each at once, one after the other."""
        for path, source in ((self.cert, other.cert), (self.key, other.key)):
            fresh = Path(path + ".new")
            fresh.write_bytes(Path(source).read_bytes())
            fresh.chmod(0o600)
            os.replace(fresh, path)


class Authority:
    """An authority with its certificate in a file."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self._count = 0
        usage = x509.BasicConstraints(ca=True, path_length=0)
        builder = _builder(self._name, self._name, self._key, days=30)
        certificate = builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())
        self.ca = str(folder / "ca.pem")
        Path(self.ca).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, name: str, hosts: Sequence[str] = (), *, begins: int = -10, days: int = 30
    ) -> Pair:
        """Return a new certificate with a common name, for hosts.

        Args:
            name: the common name.
            hosts: that it is valid for.
            begins: days from now until it is valid.
            days: from now until its end; < 0: it has expired.
        """
        self._count += 1
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name), self._name, key, begins=begins, days=days)
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        stem = f"{name.replace('*', 'any')}-{self._count}"
        pair = Pair(str(self.folder / f"{stem}.pem"), str(self.folder / f"{stem}.key"))
        Path(pair.cert).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        Path(pair.key).write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        Path(pair.key).chmod(0o600)
        return pair


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    *,
    days: int,
    begins: int = -10,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins * DAY)
        .not_valid_after(now + days * DAY)
    )
