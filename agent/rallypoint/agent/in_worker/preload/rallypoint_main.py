"""What the main program finds in its interpreter: sys.path, environment, arguments, stdin.

See sitecustomize.py. Standard library only, and Python 3.8 or newer. The agent never imports this
file.
"""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False  # importing typing would take a millisecond of every start
if TYPE_CHECKING:
    from typing import Any


class Main:
    """Lets imports find what they would find if the main program did them."""

    def __init__(self, path: str | None) -> None:
        """Begin.

        Args:
            path: what the interpreter will put first on sys.path; None: nothing.
        """
        self._path = None if getattr(sys.flags, "safe_path", False) else path
        if self._path is not None:
            sys.path.insert(0, self._path)
        self._known = set(sys.path_importer_cache)
        self._variables: dict[str, Any] = vars(sys.modules["__main__"])
        script = sys.argv[0]
        if path == os.path.abspath(script):  # a folder or an archive
            script = os.path.join(path, "__main__.py")
        elif not os.path.isfile(script):  # -m: the file is not known yet
            script = ""
        if script:  # without it, a module takes the interpreter for an interactive one
            self._variables["__file__"] = os.path.abspath(script)
        self._file = script

    def end(self) -> None:
        """Leave sys.path as it was."""
        if self._path is not None and self._path in sys.path:
            sys.path.remove(self._path)
        if self._file:
            self._variables.pop("__file__", None)

    def forget(self) -> None:
        """Forget which files there were; some may have come while this process has waited."""
        cache: dict[str, Any] = sys.path_importer_cache
        for path, finder in list(cache.items()):
            if path not in self._known or (finder is None and os.path.exists(path)):
                del cache[path]
            elif hasattr(finder, "invalidate_caches"):
                finder.invalidate_caches()


class Environment:
    """The environment of this process, and what it has changed in it since it was started.

    A C locale that the interpreter has coerced, the user's sitecustomize and imports all change it,
    and would do the same in a fresh interpreter.
    """

    def __init__(self) -> None:
        """Note what this process was started with. PYTHONPATH is the user's again."""
        try:
            with open("/proc/self/environ", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:  # another user's program: only what was changed before is missed
            self._begin = dict(os.environb)
            return
        parts = (word.partition(b"=") for word in words if word)
        self._begin = {name: value for name, _, value in parts}
        for name in ("PYTHONPATH", "RALLYPOINT_PRELOAD_PYTHONPATH", "RALLYPOINT_PRELOAD_FDS"):
            self._begin.pop(os.fsencode(name), None)
        if "PYTHONPATH" in os.environ:
            self._begin[b"PYTHONPATH"] = os.environb[b"PYTHONPATH"]

    def replace(self, environ: dict[str, str]) -> None:
        """Replace all variables, in the order of `environ`; keep what was changed here."""
        wanted = {
            name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
            for name, value in environ.items()
        }
        now = dict(os.environb)
        for name in [*self._begin, *now]:
            if now.get(name) == self._begin.get(name):
                continue
            if name not in now:
                wanted.pop(name, None)
            else:
                wanted[name] = now[name]
        for name in now:
            del os.environb[name]
        for name, value in wanted.items():
            os.environb[name] = value


def is_program(words: list[str]) -> bool:
    """Return whether the command line of this process ends with these words.

    A wrapper that is no interpreter may run another program in Python first.
    """
    try:
        with open("/proc/self/cmdline", "rb") as file:
            own = file.read().split(b"\0")[:-1]
    except OSError:  # another user's program
        return True
    wanted = [word.encode("utf-8", "surrogateescape") for word in words]
    return own[len(own) - len(wanted) :] == wanted


def set_arguments(before: list[str], arguments: list[str]) -> None:
    """Set the words that follow the script.

    Args:
        before: sys.argv before the imports. An import may have changed it since.
        arguments: of the worker.
    """
    words = [os.fsdecode(word.encode("utf-8", "surrogateescape")) for word in arguments]
    if not words or before[-len(words) :] == words:
        return
    sys.argv[-len(words) :] = words
    original = getattr(sys, "orig_argv", None)  # since Python 3.10
    if original is not None:
        original[-len(words) :] = words


def reopen_stdin() -> None:
    """Open sys.stdin as the interpreter does: what it has found out was about /dev/null."""
    old: Any = sys.stdin
    if old is None or old is not sys.__stdin__ or type(old) is not io.TextIOWrapper:
        return
    try:
        binary: Any = open(0, "rb", closefd=False)
        is_unbuffered = old.write_through
        new: Any = io.TextIOWrapper(
            binary,
            old.encoding,
            old.errors,
            "\n",
            line_buffering=binary.isatty() and not is_unbuffered,
            write_through=is_unbuffered,
        )
    except Exception:  # noqa: BLE001 - it is closed, or a folder: the old one says so, too
        return
    binary.raw.name, new.mode = "<stdin>", "r"
    for name in ("stdin", "__stdin__"):
        setattr(sys, name, new)


def reopen_output(fd: int, name: str) -> None:
    """Open sys.stdout or sys.stderr as the interpreter does, for another kind of file.

    Args:
        fd: its descriptor.
        name: its name in sys.
    """
    old: Any = getattr(sys, name)
    if old is not getattr(sys, f"__{name}__") or type(old) is not io.TextIOWrapper:
        return
    try:
        binary: Any = open(fd, "wb", 0 if old.write_through else -1, closefd=False)
        new: Any = io.TextIOWrapper(
            binary,
            old.encoding,
            old.errors,
            "\n",
            line_buffering=old.line_buffering,
            write_through=old.write_through,
        )
    except Exception:  # noqa: BLE001 - it is closed: the old one says so, too
        return
    getattr(binary, "raw", binary).name, new.mode = f"<{name}>", "w"
    for one in (name, f"__{name}__"):
        setattr(sys, one, new)
