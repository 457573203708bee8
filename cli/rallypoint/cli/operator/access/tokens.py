"""New tokens, and what a coordinator's auth file has of them."""

from __future__ import annotations

import datetime
import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from rallypoint.base.exit_codes import EXIT_USAGE
from rallypoint.cli.operator.contexts import quote
from rallypoint.cli.operator.failures import CommandFailed
from rallypoint.wire.access import Role

TOKEN_BYTES = 32
"""Of randomness: a token cannot be guessed, so a plain digest of it may be stored."""
NAME_CHARS_MAX = 128


def draw_token() -> str:
    """Return a new token."""
    return f"rp_{secrets.token_urlsafe(TOKEN_BYTES)}"


def to_entry(
    token: str, name: str, role: Role, jobs: Sequence[str], ends: datetime.datetime | None
) -> str:
    """Return the entry of a token for an auth file, in TOML.

    Args:
        token: it is not in the entry, only its digest.
        name: for audit lines.
        role: of its holder.
        jobs: patterns of the jobs that it is for; none: all.
        ends: when it expires, in UTC; None: never.

    Raises:
        CommandFailed: a name or a pattern is of no use.
    """
    if role is Role.RELAY and jobs:
        text = "--job is not for relays: each agent that a relay carries has its own token"
        raise CommandFailed(text, EXIT_USAGE)
    if not 0 < len(name) <= NAME_CHARS_MAX or not all(map(str.isprintable, (name, *jobs))):
        text = f"--name and --job are printable; a name has 1 to {NAME_CHARS_MAX} characters"
        raise CommandFailed(text, EXIT_USAGE)
    digest = hashlib.sha256(token.encode()).hexdigest()
    lines = [
        "[[token]]",
        f"name = {quote(name)}",
        f'role = "{role.value}"',
        f'sha256 = ["{digest}"]',
    ]
    if jobs:
        lines.append(f"jobs = [{', '.join(map(quote, jobs))}]")
    if ends is not None:
        lines.append(f"expires = {ends:%Y-%m-%dT%H:%M:%SZ}")
    return "\n".join(lines)


def write_token(path: Path, token: str) -> None:
    """Write a token into a new file that only its owner can read.

    Raises:
        CommandFailed: there is such a file, or it cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{token}\n")
    except FileExistsError:
        raise CommandFailed(f"{path} is there already: name a new file") from None
    except OSError as error:
        raise CommandFailed(f"cannot write {path}: {error.strerror}") from None
