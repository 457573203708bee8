"""The coordinators that a user has saved under names, in a file of the user alone.

It is TOML at `$XDG_CONFIG_HOME/rallypoint/contexts.toml`:

    current = "prod"

    [contexts."prod"]
    coordinator = "head1:50051,head2:50051"
    tls_ca = "/etc/rallypoint/ca.pem"
    token_file = "/home/ada/.config/rallypoint/token"

It names files and has no token itself. A program that writes it replaces it whole.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from rallypoint.base.addresses import parse_endpoints
from rallypoint.base.exit_codes import EXIT_USAGE
from rallypoint.cli.operator.common import AccessOptions
from rallypoint.cli.operator.failures import CommandFailed, NotFound

VARIABLE = "RALLYPOINT_CONTEXT"
CONTEXTS_MAX = 1_000
FILE_BYTES_MAX = 1024 * 1024
_NAME = r"[\w][\w.@-]{0,62}"


class Context(AccessOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A coordinator, and how to prove to it who one is. Its paths are absolute."""

    coordinator: str
    """`host:port`, or several with commas in between."""


class Contexts(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    current: str = ""
    """The one that counts without an option or a variable; empty: none."""
    contexts: dict[str, Context] = {}

    def find(self, name: str) -> Context:
        """Return a context.

        Raises:
            NotFound: there is none with this name.
        """
        found = self.contexts.get(name)
        if found is not None:
            return found
        import difflib  # slow to import, and only an error needs it

        near = difflib.get_close_matches(name, self.contexts, n=1)
        hint = f"did you mean {near[0]}?" if near else "see rallypoint context list"
        raise NotFound(f"there is no context {name!r}; {hint}")


def contexts_path(environment: Mapping[str, str]) -> Path:
    """Return where the file is, or would be."""
    folder = Path(environment.get("XDG_CONFIG_HOME", ""))
    if not folder.is_absolute():  # as its specification says
        folder = Path.home() / ".config"
    return folder / "rallypoint" / "contexts.toml"


def read_contexts(path: Path) -> Contexts:
    """Return what the file has; nothing if it does not exist.

    Raises:
        CommandFailed: it cannot be read, or is none.
    """
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise CommandFailed(f"cannot read {path}: {error.strerror}", EXIT_USAGE) from None
    if len(content) > FILE_BYTES_MAX:
        raise CommandFailed(f"{path} is larger than {FILE_BYTES_MAX // 1024} KiB", EXIT_USAGE)
    import tomllib

    try:
        return msgspec.convert(tomllib.loads(content.decode()), Contexts)
    except (ValueError, msgspec.ValidationError) as error:
        raise CommandFailed(f"{path}: {error}; correct it, or delete it", EXIT_USAGE) from None


def write_contexts(path: Path, contexts: Contexts) -> None:
    """Replace the file, readable for its owner only.

    Raises:
        CommandFailed: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:  # mode 0600
            try:
                file.write(_to_toml(contexts))
                file.close()
                os.replace(file.name, path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(file.name)
                raise
    except OSError as error:
        raise CommandFailed(f"cannot write {path}: {error.strerror}") from None


def check_name(name: str) -> None:
    """Check the name of a new context.

    Raises:
        CommandFailed: it is none.
    """
    if not re.fullmatch(_NAME, name):
        text = f"{name!r} is not a name for a context: letters, digits, and . _ - @ after the first"
        raise CommandFailed(text, EXIT_USAGE)


def read_address(text: str, source: str) -> str:
    """Return `host:port`, or several with commas in between.

    Raises:
        CommandFailed: one of them is no address; the text begins with `source`.
    """
    try:
        return parse_endpoints(text)
    except ValueError as error:
        raise CommandFailed(f"{source}: {error}", EXIT_USAGE) from None


def _to_toml(contexts: Contexts) -> str:
    lines = [f"current = {quote(contexts.current)}"] if contexts.current else []
    for name, context in sorted(contexts.contexts.items()):
        values: dict[str, Any] = msgspec.to_builtins(context)
        lines += ["", f"[contexts.{quote(name)}]"]
        lines += [f"{key} = {quote(value)}" for key, value in values.items()]
    return "\n".join(lines).lstrip("\n") + "\n"


def quote(value: str | bool) -> str:
    """Return a value: TOML has JSON's texts, booleans and escapes."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
