"""Reads what a certificate says, also one that cannot be verified.

The dates and names of such a certificate are what people need to see. This is no verification. The
ssl module decodes only certificates that it trusts, but the function below it, which its own tests
use, decodes all. The input is from the network: what is no certificate raises ValueError.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import os
import re
import ssl
from _ssl import _test_decode_cert  # type: ignore[attr-defined]  # not in typeshed
from collections.abc import Iterable, Iterator
from enum import Enum

from msgspec import Struct

from rallypoint.base.printable import to_printable_line

ENDS_SOON_S = 14 * 86_400.0
"""Time to renew a certificate without haste."""

_NAMES_MAX = 64
"""More are not read, and not shown."""


class Certificate(Struct, frozen=True):
    """What a certificate says."""

    subject: str
    """Its common name, or another part of its name. Empty: it has none."""
    issuer: str
    """The same of the authority that has signed it."""
    names: tuple[str, ...]
    """Names and addresses that it is valid for."""
    begins_s: float
    """Unix time from which it is valid."""
    ends_s: float
    """Unix time until which it is valid."""


class Life(Enum):
    """Whether a certificate is valid, by its dates."""

    NOT_BEGUN = "not begun"
    VALID = "valid"
    ENDS_SOON = "ends soon"
    EXPIRED = "expired"


def judge_life(one: Certificate, now_s: float) -> Life:
    """Judge the dates of a certificate; `now_s` is Unix time."""
    if one.ends_s <= now_s:
        return Life.EXPIRED
    if one.begins_s > now_s:
        return Life.NOT_BEGUN
    return Life.ENDS_SOON if one.ends_s - now_s < ENDS_SOON_S else Life.VALID


def read_certificate(der: bytes) -> Certificate:
    """Return what a certificate in DER says.

    Raises:
        ValueError: it is none.
    """
    with open(os.memfd_create("certificate"), "w", encoding="ascii") as file:
        file.write(ssl.DER_cert_to_PEM_cert(der))
        file.flush()
        try:
            one = _test_decode_cert(f"/proc/self/fd/{file.fileno()}")
            return Certificate(
                subject=_read_name(one["subject"]),
                issuer=_read_name(one["issuer"]),
                names=tuple(_alternative_names(one.get("subjectAltName", ())))[:_NAMES_MAX],
                begins_s=float(ssl.cert_time_to_seconds(one["notBefore"])),
                ends_s=float(ssl.cert_time_to_seconds(one["notAfter"])),
            )
        except (OSError, ValueError) as error:
            raise ValueError(f"no certificate: {error}") from error


def read_pem(text: str) -> Certificate:
    """Return what the first certificate of a PEM file says.

    Raises:
        ValueError: there is none.
    """
    found = re.search(r"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", text, re.DOTALL)
    if found is None:
        raise ValueError("no certificate: there is no BEGIN CERTIFICATE line")
    try:
        return read_certificate(base64.b64decode("".join(found[1].split()), validate=True))
    except binascii.Error as error:
        raise ValueError(f"no certificate: {error}") from error


def _read_name(name: Iterable[Iterable[tuple[str, str]]]) -> str:
    """Return the common name, or else the first part of a name."""
    parts = [part for one in name for part in one]
    common = (text for key, text in parts if key == "commonName")
    return to_printable_line(next(common, parts[0][1] if parts else ""))


def _alternative_names(names: Iterable[tuple[str, str]]) -> Iterator[str]:
    for kind, text in names:
        if kind == "DNS":
            yield to_printable_line(text)
        elif kind == "IP Address":
            yield str(ipaddress.ip_address(text.strip()))
