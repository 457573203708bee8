"""A certificate authority in a folder: it signs the certificates of coordinators and clients.

The folder is for one person: its key signs certificates that every coordinator trusts. Copy from it
only what a host needs. Files are made once; a renewed pair replaces the old one file by file, and
who uses it waits until both fit together.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from msgspec import Struct

from rallypoint.base.addresses import is_address
from rallypoint.base.exit_codes import EXIT_USAGE
from rallypoint.cli.operator.failures import CommandFailed, NotFound

AUTHORITY = "ca"
"""Name of the authority's own two files."""
DAYS_MAX = 36_500
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
"""Of a certificate: a common name has at most 64 characters, and here it names files too."""
SKEW = datetime.timedelta(hours=1)
"""How long before now a certificate begins, for hosts whose clocks are slow."""


class Issued(Struct, frozen=True):
    """A new certificate."""

    cert: Path
    key: Path
    ends: datetime.datetime
    """When it expires, in UTC."""


def init_authority(folder: Path, name: str, days: int, now: datetime.datetime) -> Issued:
    """Make an authority in a folder, which may not have one yet.

    Args:
        folder: it is made if it does not exist.
        name: of the authority, as people see it in certificates.
        days: how long it is valid, 1 to `DAYS_MAX`.
        now: with a time zone.

    Raises:
        CommandFailed: there is one, or the folder cannot be written.
    """
    _check_days(days)
    key = ec.generate_private_key(ec.SECP256R1())
    # Two authorities of one name would be mistaken for each other when certificates are verified.
    subject = _to_name(f"{name} {secrets.token_hex(4)}")
    ends = now + datetime.timedelta(days=days)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = folder.stat().st_mode
    except OSError as error:
        raise CommandFailed(f"cannot make {folder}: {error.strerror}") from None
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CommandFailed(f"others can replace files in {folder}: run `chmod 700 {folder}`")
    made = _make(subject, subject, key, now, ends).sign(key, SHA256())
    return _write(folder, AUTHORITY, made, key, ends, renew=False)


def issue(
    folder: Path,
    name: str,
    hosts: Sequence[str],
    days: int,
    now: datetime.datetime,
    *,
    renew: bool = False,
) -> Issued:
    """Sign a new certificate.

    Args:
        folder: of the authority; the files come there.
        name: common name of the certificate, and of its files.
        hosts: names and addresses of a coordinator; none: it is for a client.
        days: how long it is valid; it ends with the authority at the latest.
        now: with a time zone.
        renew: replace the files that there are.

    Raises:
        CommandFailed: an argument is wrong, there is no authority, or there are such files.
    """
    _check_days(days)
    if not NAME.fullmatch(name) or name.lower() == AUTHORITY:  # some file systems ignore case
        text = "a name has 1 to 64 letters, digits and . _ @ -, and is not ca"
        raise CommandFailed(f"{name!r}: {text}", EXIT_USAGE)
    if bad := [host for host in hosts if not is_address(host)]:
        raise CommandFailed(f"{bad[0]!r} is neither a host name nor an address", EXIT_USAGE)
    signer, authority = _read(folder)
    if authority.not_valid_after_utc <= now:
        raise CommandFailed(f"the authority in {folder} has expired: make another with certs init")
    ends = min(now + datetime.timedelta(days=days), authority.not_valid_after_utc)
    key = ec.generate_private_key(ec.SECP256R1())
    # Coordinators that share a store are clients of each other.
    uses = [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    if hosts:
        uses.insert(0, x509.oid.ExtendedKeyUsageOID.SERVER_AUTH)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = (
        _make(_to_name(name), authority.subject, key, now, ends)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(identifier, critical=False)
    )
    if hosts:
        names = x509.SubjectAlternativeName([_to_host(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return _write(folder, name, builder.sign(signer, SHA256()), key, ends, renew=renew)


def _check_days(days: int) -> None:
    if not 1 <= days <= DAYS_MAX:
        raise CommandFailed(f"--days must be 1 to {DAYS_MAX}", EXIT_USAGE)


def _read(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Return key and certificate of the authority."""
    cert, key = _files(folder, AUTHORITY)
    try:
        found = serialization.load_pem_private_key(key.read_bytes(), None)
        authority = x509.load_pem_x509_certificate(cert.read_bytes())
    except FileNotFoundError:
        text = f"there is no authority in {folder}: name its --folder, or make one"
        raise NotFound(f"{text}: rallypoint certs init") from None
    except OSError as error:
        raise CommandFailed(f"cannot read the authority in {folder}: {error.strerror}") from None
    except (ValueError, TypeError):
        raise CommandFailed(f"{cert} or {key} is damaged") from None
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise CommandFailed(f"{key} is not a key that `rallypoint certs init` has made")
    return found, authority


def _files(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.pem", folder / f"{name}.key"


def _make(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    ends: datetime.datetime,
) -> x509.CertificateBuilder:
    """Return a certificate that is not signed yet: of an authority if that is its own issuer."""
    is_authority = subject == issuer
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )
    path_length = 0 if is_authority else None
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(is_authority, path_length), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _to_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, text)])


def _to_host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _write(
    folder: Path,
    name: str,
    certificate: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    ends: datetime.datetime,
    *,
    renew: bool,
) -> Issued:
    cert_file, key_file = _files(folder, name)
    there = [str(path) for path in (cert_file, key_file) if path.exists()]
    if there and not renew:
        is_new = name == AUTHORITY
        hint = "; choose another --folder" if is_new else "; replace it with --renew"
        raise CommandFailed(f"{there[0]} is there already{hint}")
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        for path, content, mode in (
            (key_file, private, 0o600),
            (cert_file, certificate.public_bytes(pem), 0o644),
        ):
            _replace(path, content, mode)
    except OSError as error:
        raise CommandFailed(f"cannot write {folder}: {error.strerror}") from None
    return Issued(cert_file, key_file, ends.replace(microsecond=0))


def _replace(path: Path, content: bytes, mode: int) -> None:
    """Write a file as a whole; no one else can read a key in between."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
