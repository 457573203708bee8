"""Reads what a certificate says, also one that cannot be verified.

The standard library decodes only certificates that it trusts, but the dates and names of the others
are what people need to see. This is no verification. The input is from the network: a certificate
that breaks the rules of DER raises ValueError, nothing else.

Source: RFC 5280, section 4.1; X.690, sections 8.1 and 11.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import Enum

from msgspec import Struct

from rallypoint.base.printable import to_printable_line

ENDS_SOON_S = 14 * 86_400.0
"""Time to renew a certificate without haste."""

_SEQUENCE, _SET, _INTEGER, _OID = 0x30, 0x31, 0x02, 0x06
_VERSION, _EXTENSIONS = 0xA0, 0xA3
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
_DNS_NAME, _ADDRESS = 0x82, 0x87
_COMMON_NAME = bytes((0x55, 0x04, 0x03))  # 2.5.4.3
_ALTERNATIVE_NAMES = bytes((0x55, 0x1D, 0x11))  # 2.5.29.17
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
    try:
        whole = _only(der, _SEQUENCE)
        fields = list(_items(_first(whole, _SEQUENCE)))
        if fields and fields[0][0] == _VERSION:
            fields = fields[1:]
        _, _, issuer, validity, subject = (_expect(fields, at) for at in range(5))
        begins, ends = (_read_time(tag, value) for tag, value in _items(validity))
        extensions = next((value for tag, value in fields[5:] if tag == _EXTENSIONS), b"")
        return Certificate(
            subject=_read_name(subject),
            issuer=_read_name(issuer),
            names=tuple(_alternative_names(extensions))[:_NAMES_MAX],
            begins_s=begins,
            ends_s=ends,
        )
    except (IndexError, ValueError, OverflowError) as error:
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


# --- Parts of a certificate ---


def _read_name(name: bytes) -> str:
    """Return the common name, or else the first part of a name that is text."""
    first = ""
    for tag, part in _items(name):
        if tag != _SET:
            raise ValueError("a name has another structure")
        (_, oid), (_, value) = list(_items(_first(part, _SEQUENCE)))[:2]
        text = to_printable_line(value.decode("utf-8", "replace"))
        if oid == _COMMON_NAME:
            return text
        first = first or text
    return first


def _alternative_names(extensions: bytes) -> Iterator[str]:
    if not extensions:
        return
    for _, extension in _items(_first(extensions, _SEQUENCE)):
        fields = list(_items(extension))
        if fields[0] != (_OID, _ALTERNATIVE_NAMES):
            continue
        for tag, value in _items(_only(fields[-1][1], _SEQUENCE)):
            if tag == _DNS_NAME:
                yield to_printable_line(value.decode("ascii", "replace"))
            elif tag == _ADDRESS:
                yield str(ipaddress.ip_address(value))


def _read_time(tag: int, value: bytes) -> float:
    forms = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}
    if tag not in forms:
        raise ValueError("a date has another type")
    moment = datetime.strptime(value.decode("ascii", "replace"), forms[tag]).replace(tzinfo=UTC)
    if tag == _UTC_TIME and moment.year >= 2050:  # RFC 5280: two digits mean 1950 to 2049
        moment = moment.replace(year=moment.year - 100)
    return moment.timestamp()


# --- DER ---


def _items(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and the content of each item."""
    while data:
        tag, length, start = data[0], data[1], 2
        if length >= 0x80:
            size = length & 0x7F
            if not 0 < size <= 4:
                raise ValueError("a length has no valid form")
            length, start = int.from_bytes(data[2 : 2 + size]), 2 + size
        if start + length > len(data):
            raise ValueError("it ends too early")
        yield tag, data[start : start + length]
        data = data[start + length :]


def _first(data: bytes, tag: int) -> bytes:
    """Return the content of the first item, which must have this tag."""
    found = next(_items(data), None)
    if found is None or found[0] != tag:
        raise ValueError("it has another structure")
    return found[1]


def _only(data: bytes, tag: int) -> bytes:
    """Return the content of the only item."""
    if len(list(_items(data))) != 1:
        raise ValueError("it has another structure")
    return _first(data, tag)


def _expect(fields: list[tuple[int, bytes]], at: int) -> bytes:
    """Return one of the first fields of a certificate, which all have a fixed type."""
    tag, value = fields[at]
    if tag != (_INTEGER, _SEQUENCE, _SEQUENCE, _SEQUENCE, _SEQUENCE)[at]:
        raise ValueError("it has another structure")
    return value
