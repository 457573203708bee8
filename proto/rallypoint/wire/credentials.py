"""What an access gives: the metadata of every call, and channels.

`look` alone reads the files again, at most once a second. All else gives what was read, so an event
loop may ask for it, and lets a thread look. A renewed token counts from the next call on, renewed
certificates with the next channel. Certificate and key are two files, which cannot be
replaced at once: while they do not fit together, the old ones count.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.base.private_files import find_writer
from rallypoint.wire.access import TOKEN_VARIABLE, Access, AccessFailed
from rallypoint.wire.channel import Options
from rallypoint.wire.files import FileUnusable, read_regular
from rallypoint.wire.resolved import Resolved

if TYPE_CHECKING:  # an agent reads its files before it loads gRPC
    import grpc
    import grpc.aio

TOKEN_KEY = "authorization"
"""Metadata of a call: `Bearer TOKEN`."""
WORKER_TOKEN_KEY = "rallypoint-worker-token"
"""Metadata of a call: the value of RALLYPOINT_WORKER_TOKEN."""
RELAYED_KEY = "rallypoint-relayed"
"""Trailing metadata of a call that a relay has passed on."""
RELAYED_PEER_KEY = "rallypoint-relayed-peer"
"""Metadata of a call that a relay passes on: who has made it, as gRPC names peers."""
LOOK_S = 1.0
"""How often the files are looked at, at most: also when there are thousands of calls a second."""
FILE_BYTES_MAX = 1024 * 1024
"""The certificates of all public authorities take 220 KiB."""
TOKEN_CHARS_MAX = 4096
"""Half of what gRPC allows for the metadata of a call."""
READABLE = "every user of this host can read it: run `chmod 600` for it"
"""What a log says about a secret that `find_readable` has found."""
Metadata = tuple[tuple[str, str], ...]
_ONE_WORD = "a token is one word of ASCII letters, digits and punctuation"
_AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Alpine, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # SUSE
)


class _Contents(Struct, frozen=True):
    """What the files have. Never shown."""

    authorities: bytes | None = None
    """None: those of gRPC itself."""
    chain: bytes | None = None
    key: bytes | None = None
    token: str = ""

    def __repr__(self) -> str:
        return "_Contents(***)"


class Credentials:
    """What one access gives. Threads may share it."""

    def __init__(self, access: Access, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Read the files.

        Args:
            access: where the files are, and what to verify.
            clock_s: seconds since any instant.

        Raises:
            AccessFailed: one of them is of no use.
        """
        self.access = access
        self._lock = threading.Lock()
        """Held by the one that looks at the files; the others take what there is."""
        self._paths = _paths(access)
        self._signature = _sign(self._paths)
        self._contents = _load(access)
        self._version = 1
        self._clock_s = clock_s
        self._looked_s = clock_s()
        self._problem = ""

    def open_channel(self, at: Resolved, options: Options) -> grpc.Channel:
        """Return a channel for blocking calls."""
        import grpc

        options = self._options(at, options)
        if not self.access.uses_tls:
            return grpc.insecure_channel(at.uri, options=options)
        return grpc.secure_channel(at.uri, self._channel_credentials(), options)

    def open_aio_channel(self, at: Resolved, options: Options) -> grpc.aio.Channel:
        """Return a channel for asyncio."""
        import grpc.aio

        options = self._options(at, options)
        if not self.access.uses_tls:
            return grpc.aio.insecure_channel(at.uri, options=options)
        return grpc.aio.secure_channel(at.uri, self._channel_credentials(), options)

    def metadata(self) -> Metadata:
        """Return the metadata of the next call; empty without a token."""
        token = self._contents.token
        return ((TOKEN_KEY, f"Bearer {token}"),) if token else ()

    @property
    def version(self) -> int:
        """Return a number that grows when a certificate, key or authority was renewed.

        Who has a channel of an older one opens another, and closes the old one when its calls
        have ended.
        """
        return self._version

    @property
    def is_due(self) -> bool:
        """Return whether the last look is long enough ago, and none is under way."""
        is_old = self._clock_s() - self._looked_s >= LOOK_S
        return bool(self._paths) and is_old and not self._lock.locked()

    def look_now(self) -> None:
        """Take renewed files, even if the last look was a moment ago.

        For a call that was refused: its token may have been replaced meanwhile. It may wait for
        the file system.
        """
        if self._paths:
            self._take_renewed(LOOK_S)

    def server_configuration(self) -> grpc.ServerCertificateConfiguration:
        """Return certificate and key for a server; with a `ca_file`, its clients need one, too."""
        import grpc

        contents = self._contents
        assert contents.key is not None and contents.chain is not None, "a server has both"
        authorities = contents.authorities if self.access.ca_file else None
        pairs = [(contents.key, contents.chain)]
        return grpc.ssl_server_certificate_configuration(pairs, root_certificates=authorities)

    @property
    def chain(self) -> bytes:
        """Return the certificate and its chain, in PEM format; empty: there is none."""
        return self._contents.chain or b""

    @property
    def problem(self) -> str:
        """Return why the latest files are of no use, so that the older ones count; or ""."""
        return self._problem

    def look(self) -> None:
        """Take renewed files, if the last look is long enough ago.

        It may wait for the file system: an event loop lets a thread call it.
        """
        if self.is_due:
            self._take_renewed(0.0)

    def _take_renewed(self, wait_s: float) -> None:
        """Look at the files, unless another thread does, and takes longer than `wait_s`."""
        if not self._lock.acquire(timeout=wait_s):
            return
        try:
            self._looked_s = self._clock_s()
            self._compare()
        finally:
            self._lock.release()

    def _compare(self) -> None:
        signature = _sign(self._paths)
        if signature == self._signature and not self._problem:
            return
        try:
            contents = _load(self.access)
        except AccessFailed as failed:
            self._problem = str(failed)
            return
        self._problem, self._signature = "", signature
        old, self._contents = self._contents, contents
        if replace(old, token="") != replace(contents, token=""):
            self._version += 1

    def _channel_credentials(self) -> grpc.ChannelCredentials:
        import grpc

        contents = self._contents
        return grpc.ssl_channel_credentials(contents.authorities, contents.key, contents.chain)

    def _options(self, at: Resolved, options: Options) -> Options:
        """Return the options of a channel, with the name that a certificate must have."""
        if self.access.server_name:
            return [*options, ("grpc.ssl_target_name_override", self.access.server_name)]
        return [*options, ("grpc.default_authority", at.target)] if at.addresses else options


def sent_twice(key: str) -> str:
    """Return the text that refuses a call with two values of a key of its metadata."""
    return f"`{key}` was sent more than once: send one, and look for a proxy that adds another"


def _paths(access: Access) -> tuple[str, ...]:
    files = [access.token_file]
    if access.uses_tls:
        files += [find_authorities(access), access.cert_file, access.key_file]
    return tuple(path for path in files if path)


def find_authorities(access: Access) -> str:
    """Return the file with the authorities; empty: there is none but gRPC's own."""
    if access.ca_file:
        return access.ca_file
    candidates = (os.environ.get("SSL_CERT_FILE", ""), *_AUTHORITIES)
    return next((path for path in candidates if path and os.path.isfile(path)), "")


def _sign(paths: Sequence[str]) -> tuple[object, ...]:
    """Return something that differs when a file was replaced or changed."""
    return tuple(map(_sign_one, paths))


def _sign_one(path: str) -> object:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _load(access: Access) -> _Contents:
    token = _read_token(access.token_file) if access.token_file else access.token
    if not access.token_file:
        _check_token(token, TOKEN_VARIABLE)
    if not access.uses_tls:
        return _Contents(token=token)
    authorities_file = find_authorities(access)
    authorities = _read(authorities_file) if authorities_file else None
    if authorities is not None:
        _check_authorities(authorities, authorities_file)
    if bool(access.cert_file) != bool(access.key_file):
        given, missing = ("certificate", "key") if access.cert_file else ("key", "certificate")
        raise AccessFailed(f"there is a client {given} without its {missing}: name both files")
    if not access.cert_file:
        return _Contents(authorities, token=token)
    chain, key = _read(access.cert_file), _read_secret(access.key_file)
    _check_pair(access, chain, key)
    return _Contents(authorities, chain, key, token)


def _read(path: str) -> bytes:
    try:
        return read_regular(path, FILE_BYTES_MAX)[0]
    except FileUnusable as unusable:
        raise AccessFailed(str(unusable)) from None


def _read_secret(path: str) -> bytes:
    """Return the content of a file that no other user can write."""
    try:
        content, status = read_regular(path, FILE_BYTES_MAX)
    except FileUnusable as unusable:
        raise AccessFailed(str(unusable)) from None
    if writer := find_writer(status, path):
        raise AccessFailed(f"{writer} can write {path}, which is a secret: run `chmod 600 {path}`")
    return content


def find_readable(access: Access) -> str:
    """Return the token or key that every user of this host can read; empty: there is none.

    Its group may be meant to: Kubernetes mounts secrets for one.
    """
    for path in (access.token_file, access.key_file if access.uses_tls else ""):
        with suppress(OSError, ValueError):
            if path and os.stat(path).st_mode & stat.S_IROTH:
                return path
    return ""


def _read_token(path: str) -> str:
    try:
        token = _read_secret(path).decode("ascii").strip()
    except UnicodeDecodeError:
        raise AccessFailed(f"{path}: {_ONE_WORD}") from None
    if not token:
        raise AccessFailed(f"{path} is empty: it has no token")
    _check_token(token, path)
    return token


def _check_token(token: str, whose: str) -> None:
    if len(token) > TOKEN_CHARS_MAX:
        raise AccessFailed(f"{whose} has more than {TOKEN_CHARS_MAX} characters")
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise AccessFailed(f"{whose}: {_ONE_WORD}")


def _check_authorities(content: bytes, path: str) -> None:
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode())
    except (ssl.SSLError, ValueError):
        raise AccessFailed(f"{path} has no certificates in PEM format") from None


def _check_pair(access: Access, chain: bytes, key: bytes) -> None:
    """Check that certificate and key belong together, as they were read."""
    import ssl

    cert_file, key_file = access.cert_file, access.key_file
    if b"-----BEGIN CERTIFICATE-----" not in chain:
        raise AccessFailed(f"{cert_file} has no certificate in PEM format")
    if b"PRIVATE KEY-----" not in key:
        raise AccessFailed(f"{key_file} has no private key in PEM format")
    if b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in key or b"Proc-Type: 4,ENCRYPTED" in key:
        raise AccessFailed(f"{key_file} has a passphrase: store the key without one")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert_file, key_file, "")
    except ssl.SSLError:
        text = f"the key in {key_file} does not belong to the certificate in {cert_file}"
        raise AccessFailed(text) from None
    except OSError as error:
        raise AccessFailed(f"cannot read {cert_file} or {key_file}: {error.strerror}") from None
    if (_read(cert_file), _read(key_file)) != (chain, key):
        raise AccessFailed(f"{cert_file} or {key_file} changed while they were read")
