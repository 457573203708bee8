"""Reads `etcd://h1:2379,h2:2379/prefix?ca=…`: where etcd is, and how to speak to it."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qsl

from msgspec import Struct

from rallypoint.base.addresses import is_loopback

SCHEME = "etcd://"
PORT = 2379
"""etcd's own default."""
ENDPOINTS_MAX = 16
PREFIX = re.compile(r"(/[A-Za-z0-9._-]{1,64}){1,8}")
ENDPOINT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253})(:(?P<port>[0-9]{1,5}))?")
FORM = "etcd://host:2379,host:2379/prefix"


class AddressInvalid(ValueError):
    """The address cannot be read; the text is one line."""


class EtcdAddress(Struct, frozen=True):
    """Where etcd is, and how to speak to it."""

    endpoints: tuple[str, ...]
    """`host:port` of members, at least one."""
    prefix: str
    """Begins with `/` and does not end with it: all keys lie under it."""
    ca: Path | None = None
    """Certificates of the authorities that etcd's certificate must come from; None: no TLS."""
    cert: Path | None = None
    """Certificate that this client shows."""
    key: Path | None = None
    """Private key of that certificate."""
    user: str | None = None
    password_file: Path | None = None
    """A file with the password of the user, because command lines can be read by others."""

    @property
    def exposes_password(self) -> bool:
        """Return whether the password crosses a network without TLS."""
        hosts = (endpoint.rpartition(":")[0].strip("[]") for endpoint in self.endpoints)
        return self.user is not None and self.ca is None and not all(map(is_loopback, hosts))


def is_etcd(place: str) -> bool:
    """Return whether a place, as `--state` has it, is in etcd."""
    return place.startswith(SCHEME)


def parse_address(text: str) -> EtcdAddress:
    """Read an address.

    Raises:
        AddressInvalid: when it is not one.
    """
    if not is_etcd(text):
        raise AddressInvalid(f"not an address of etcd: {text!r}; write {FORM}")
    location, _, query = text.removeprefix(SCHEME).partition("?")
    hosts, slash, prefix = location.partition("/")
    prefix = slash + prefix.rstrip("/")
    if not PREFIX.fullmatch(prefix):
        raise AddressInvalid(f"{text!r} has no prefix, or a wrong one: write {FORM}")
    names = hosts.split(",")
    if len(names) > ENDPOINTS_MAX:
        raise AddressInvalid(f"{len(names)} endpoints of etcd are too many: name at most 16")
    return _with_options(EtcdAddress(tuple(map(_parse_endpoint, names)), prefix), query)


def _parse_endpoint(text: str) -> str:
    matched = ENDPOINT.fullmatch(text)
    port = int(matched["port"] or PORT) if matched else 0
    if matched is None or not 0 < port < 65_536:
        raise AddressInvalid(f"{text!r} is not an endpoint of etcd: write {FORM}")
    return f"{matched['host']}:{port}"


def _with_options(address: EtcdAddress, query: str) -> EtcdAddress:
    options = dict(parse_qsl(query, keep_blank_values=True))
    known = {"ca", "cert", "key", "user", "password-file"}
    if unknown := sorted(options.keys() - known):
        raise AddressInvalid(
            f"unknown option {unknown[0]!r} for etcd; known: {', '.join(sorted(known))}"
        )
    if ("cert" in options) != ("key" in options) or ("cert" in options and "ca" not in options):
        raise AddressInvalid("TLS to etcd takes ca=FILE, or ca=FILE, cert=FILE and key=FILE")
    if ("user" in options) != ("password-file" in options):
        raise AddressInvalid("a user of etcd takes user=NAME and password-file=FILE")

    def path(name: str) -> Path | None:
        return Path(options[name]) if name in options else None

    return EtcdAddress(
        endpoints=address.endpoints,
        prefix=address.prefix,
        ca=path("ca"),
        cert=path("cert"),
        key=path("key"),
        user=options.get("user"),
        password_file=path("password-file"),
    )
