"""Describes what the workers run, for the coordinator, which compares it, and for readers."""

from __future__ import annotations

import hashlib
import os.path
import re
import shlex
from collections.abc import Mapping, Sequence

from rallypoint.base.limits import COMMAND_LINE_CHARS_MAX, PROGRAM_CHARS_MAX, TEXT_CHARS_MAX
from rallypoint.base.printable import to_printable_line
from rallypoint.v1 import agent_service_pb2 as agent_pb2

PASSWD = "/etc/passwd"
PASSWD_BYTES_MAX = 1024 * 1024
_NAMELESS = r"-|\.|\.\.|/dev/stdin|/(dev|proc/[^/]+)/fd/[0-9]+"
"""Standard input, other open files, and folders that are named by where one stands."""
_INTERPRETER = r"python[0-9.]*|bash|sh|env"
"""Programs whose name says nothing about the work; it may differ between installations."""


def describe_program(
    script: str,
    args: Sequence[str],
    *,
    is_module: bool,
    user: str,
    may_differ: bool,
    worker_command: Sequence[str] = (),
) -> agent_pb2.Program:
    """Return the description of a program.

    Args:
        script: a path, a module name, or a program.
        args: its arguments, of any length.
        is_module: `script` is a module name.
        user: who started the agent; empty if unknown.
        may_differ: the operator allows other programs beside it.
        worker_command: how a worker is started, without `args`; empty: unknown.
    """
    words = ("-m", script, *args) if is_module else (script, *args)
    # Cut twice: cleaning a long text would take long, and it may make a text shorter.
    command_line = shlex.join(words)[: 2 * COMMAND_LINE_CHARS_MAX]
    return agent_pb2.Program(
        name=find_name(script, is_module=is_module),
        arguments_digest=_digest(args),
        command_line=to_printable_line(command_line)[:COMMAND_LINE_CHARS_MAX],
        user=to_printable_line(user)[:PROGRAM_CHARS_MAX],
        may_differ=may_differ,
        worker_command=to_printable_line(shlex.join(worker_command))[:TEXT_CHARS_MAX],
    )


def find_name(script: str, *, is_module: bool) -> str:
    """Return the name that is compared between nodes, or "" for a program without one.

    The folder of a script may differ from node to node, and so may the descriptor of an open file.
    """
    if is_module:
        name = f"-m {script}"
    else:
        path = os.path.normpath(script)
        name = "" if re.fullmatch(_NAMELESS, path) else os.path.basename(path)
        name = "" if re.fullmatch(_INTERPRETER, name) else name
    return to_printable_line(name)[:PROGRAM_CHARS_MAX]


def find_user(environment: Mapping[str, str], uid: int) -> str:
    """Return the user's name from the environment, else from /etc/passwd, else the number.

    Any other look-up could wait for a directory server.
    """
    named = environment.get("LOGNAME") or environment.get("USER")
    return named or _read_passwd(uid) or f"uid {uid}"


def _read_passwd(uid: int) -> str:
    """Return the name that a file of this host has for a user; empty: none."""
    try:
        with open(PASSWD, encoding="utf-8", errors="replace") as file:
            rows = (line.split(":") for line in file.read(PASSWD_BYTES_MAX).splitlines())
            return next((row[0] for row in rows if row[2:3] == [str(uid)]), "")
    except OSError:
        return ""


def _digest(args: Sequence[str]) -> str:
    joined = b"\0".join(arg.encode(errors="surrogatepass") for arg in args)
    return hashlib.blake2s(joined, digest_size=16).hexdigest() if args else ""
