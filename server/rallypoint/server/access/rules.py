"""The auth file: whose token or certificate has which role.

It has digests of tokens, not tokens. Tokens are long and random, so a digest tells nothing about
its token, and how long a look-up of a digest takes tells nothing either.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from datetime import datetime
from fnmatch import fnmatchcase

import msgspec
from msgspec import Struct

from rallypoint.server.access.caller import Caller, Proof
from rallypoint.wire.access import GRANTED_ROLE_NAMES, GRANTED_ROLES, TOKEN_CHARS_MIN, Role

ENTRIES_MAX = 1_024
"""Tokens and certificates of one file: one for each team of a large site."""
DIGESTS_MAX = 2
"""Of one token: the old one and the new one, while it is replaced."""
NAME_CHARS_MAX = 128
JOBS_MAX = 64
"""Patterns of one entry."""
VARIABLE = "RALLYPOINT_TOKEN"


class RulesInvalid(Exception):
    """The file has no valid rules: one line that says what is wrong."""


class _Token(Struct, forbid_unknown_fields=True):
    """A table [[token]]."""

    name: str
    role: Role
    sha256: list[str]
    jobs: list[str] = []
    expires: datetime | None = None


class _Certificate(Struct, forbid_unknown_fields=True):
    """A table [[certificate]]."""

    name: str
    """Pattern of a common name or DNS name."""
    role: Role
    jobs: list[str] = []


class _File(Struct, forbid_unknown_fields=True):
    token: list[_Token] = []
    certificate: list[_Certificate] = []


class _Known(Struct, frozen=True):
    """A token as it is looked up."""

    digest: bytes
    caller: Caller


class Rules:
    """Who has which role."""

    def __init__(
        self, tokens: Iterable[tuple[str, Caller]] = (), certificates: Iterable[Caller] = ()
    ) -> None:
        """Hold the entries.

        Args:
            tokens: digests in hexadecimal digits, and whose they are.
            certificates: their names are patterns.
        """
        known = (_Known(bytes.fromhex(digest), caller) for digest, caller in tokens)
        self._tokens = {one.digest: one for one in known}
        self._certificates = tuple(certificates)

    def with_token(self, token: str) -> Rules:
        """Return these rules, and one more token with every role.

        Raises:
            RulesInvalid: when the token is too short, or no client could send it.
        """
        if not (token.isascii() and token.isprintable() and " " not in token):
            raise RulesInvalid(f"{VARIABLE} is not one word of ASCII letters, digits and signs")
        if len(token) < TOKEN_CHARS_MIN:
            raise RulesInvalid(
                f"{VARIABLE} has fewer than {TOKEN_CHARS_MIN} characters, so it could be guessed: "
                "make one with `rallypoint token new`"
            )
        made = Rules((), self._certificates)
        known = _Known(_digest(token), Caller(VARIABLE, GRANTED_ROLES, Proof.TOKEN))
        made._tokens = self._tokens | {known.digest: known}
        return made

    def find_token(self, token: str) -> Caller | None:
        """Return whose token this is, expired or not."""
        digest = _digest(token)
        known = self._tokens.get(digest)
        return known.caller if known and hmac.compare_digest(known.digest, digest) else None

    def find_certificate(self, names: Iterable[str]) -> tuple[Caller, ...]:
        """Return who shows a certificate: one for each entry that fits.

        Args:
            names: common name and DNS names of the certificate.
        """
        names = tuple(names)
        found = []
        for entry in self._certificates:
            name = next((name for name in names if fnmatchcase(name, entry.name)), None)
            if name is not None:
                found.append(Caller(name, entry.roles, Proof.CERTIFICATE, entry.jobs))
        return tuple(found)

    def has_expired(self, since_ms: int, now_ms: int) -> bool:
        """Return whether a token has expired after one time, and not after another one."""
        expiries = (known.caller.expires_ms for known in self._tokens.values())
        return any(ms is not None and since_ms < ms <= now_ms for ms in expiries)

    @property
    def count(self) -> int:
        """Return the number of tokens and certificates."""
        return len(self._tokens) + len(self._certificates)


EVERY_CERTIFICATE = Rules((), (Caller("*", GRANTED_ROLES, Proof.CERTIFICATE),))
"""Without an auth file, the authority that signs certificates of clients decides who may call."""


def parse_rules(text: str) -> Rules:
    """Return the rules in the text of a file.

    Raises:
        RulesInvalid: when they are not valid.
    """
    import tomllib  # imported here: most coordinators of a single node have no file

    try:
        file = msgspec.convert(tomllib.loads(text), _File)
    except msgspec.ValidationError as error:
        raise RulesInvalid(str(error)) from None
    except (ValueError, RecursionError) as error:  # also from digits, dates and depths without end
        raise RulesInvalid(f"it is not TOML: {error}") from None
    if not 0 < len(file.token) + len(file.certificate) <= ENTRIES_MAX:
        raise RulesInvalid(f"it has no [[token]] and no [[certificate]], or over {ENTRIES_MAX}")
    seen: set[str] = set()
    tokens = [pair for token in file.token for pair in _read_token(token, seen)]
    return Rules(tokens, [_read_certificate(entry) for entry in file.certificate])


def _read_token(entry: _Token, seen: set[str]) -> list[tuple[str, Caller]]:
    """Return the digests of an entry, and whose they are.

    Args:
        entry: of the file.
        seen: names and digests of the entries before; those of this one are added.
    """
    where = f"[[token]] {entry.name!r}"
    _check(where, entry.name, entry.role, entry.jobs)
    expires_ms = None
    if entry.expires is not None:
        if entry.expires.tzinfo is None:
            raise RulesInvalid(f"{where}: expires has no time zone, such as the Z at the end")
        expires_ms = round(entry.expires.timestamp() * 1000)
    if not 0 < len(entry.sha256) <= DIGESTS_MAX:
        raise RulesInvalid(f"{where}: sha256 has not one or {DIGESTS_MAX} digests")
    caller = Caller(entry.name, (entry.role,), Proof.TOKEN, tuple(entry.jobs), expires_ms)
    digests = [digest.lower() for digest in entry.sha256]
    for word in (f"name {entry.name}", *digests):
        if word in seen:
            raise RulesInvalid(f"{where}: another entry has the same name or digest")
        seen.add(word)
    for digest in digests:
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise RulesInvalid(f"{where}: sha256 is not 64 hexadecimal digits")
    return [(digest, caller) for digest in digests]


def _read_certificate(entry: _Certificate) -> Caller:
    _check(f"[[certificate]] {entry.name!r}", entry.name, entry.role, entry.jobs)
    return Caller(entry.name, (entry.role,), Proof.CERTIFICATE, tuple(entry.jobs))


def _check(where: str, name: str, role: Role, jobs: list[str]) -> None:
    if not (0 < len(name) <= NAME_CHARS_MAX and name.isprintable()):
        raise RulesInvalid(f"{where}: the name has not 1 to {NAME_CHARS_MAX} printable characters")
    if role not in GRANTED_ROLES:
        raise RulesInvalid(f"{where}: role is not {GRANTED_ROLE_NAMES}")
    if role is Role.RELAY and jobs:
        raise RulesInvalid(f"{where}: a relay has no jobs: each agent that it carries has its own")
    is_plain = all(0 < len(job) <= NAME_CHARS_MAX and job.isprintable() for job in jobs)
    if len(jobs) > JOBS_MAX or not is_plain:
        raise RulesInvalid(f"{where}: jobs has over {JOBS_MAX} patterns, or one that is not a word")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
