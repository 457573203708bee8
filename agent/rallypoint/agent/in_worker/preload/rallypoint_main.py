"""What the main program finds in its interpreter: sys.path, environment, arguments, streams.

See sitecustomize.py.
"""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STREAMS = ("stdin", "stdout", "stderr")


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


def set_variables(environ: dict[str, str], before: dict[bytes, bytes]) -> None:
    """Set the variables of a worker.

    Args:
        environ: those that a forkserver has not, or with another value.
        before: all that this process had before the user's sitecustomize and the imports. What
            these have set stays: they would set it in a fresh interpreter, too.
    """
    for name, value in environ.items():
        key = _to_bytes(name)
        if os.environb.get(key) == before.get(key):
            os.environb[key] = _to_bytes(value)


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def is_program(words: list[str]) -> bool:
    """Return whether the command line of this process ends with these words.

    A wrapper that is not an interpreter may run another program in Python first.
    """
    try:
        with open("/proc/self/cmdline", "rb") as file:
            own = file.read().split(b"\0")[:-1]
    except OSError:  # another user's program
        return True
    return own[len(own) - len(words) :] == [_to_bytes(word) for word in words]


def set_arguments(before: list[str], arguments: list[str]) -> None:
    """Set the words that follow the script.

    Args:
        before: sys.argv before the imports. An import may have changed it since.
        arguments: of the worker.
    """
    words = [os.fsdecode(_to_bytes(word)) for word in arguments]
    if not words or before[-len(words) :] == words:
        return
    sys.argv[-len(words) :] = words
    original = getattr(sys, "orig_argv", None)  # since Python 3.10
    if original is not None:
        original[-len(words) :] = words


def reopen(fd: int) -> None:
    """Open a standard stream as the interpreter does, which has seen another kind of file there."""
    name, mode = STREAMS[fd], "w" if fd else "r"
    old: Any = getattr(sys, name)
    if old is None or old is not getattr(sys, f"__{name}__") or type(old) is not io.TextIOWrapper:
        return
    is_unbuffered = old.write_through
    try:
        binary: Any = open(fd, mode + "b", 0 if fd and is_unbuffered else -1, closefd=False)
        new: Any = io.TextIOWrapper(
            binary,
            old.encoding,
            old.errors,
            "\n",
            line_buffering=old.line_buffering if fd else binary.isatty() and not is_unbuffered,
            write_through=is_unbuffered,
        )
    except Exception:  # noqa: BLE001 - it is closed, or a folder: the old one says so, too
        return
    getattr(binary, "raw", binary).name, new.mode = f"<{name}>", mode
    for one in (name, f"__{name}__"):
        setattr(sys, one, new)
