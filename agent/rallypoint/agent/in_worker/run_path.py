"""Runs a script as `__main__` by runpy, and writes down the exception that ends it.

Run as `python -u run_path.py SCRIPT ARG…`. The exception goes to $TORCHELASTIC_ERROR_FILE in the
form of torch's `@record`, since that is what torch wraps around workers that are functions. Nothing
of this file is seen by the script: not in sys.argv, sys.path or tracebacks.
"""

from __future__ import annotations

import faulthandler
import json
import os
import pkgutil
import runpy
import sys
import time
import traceback
from types import TracebackType

_OURS = (__file__, runpy.__file__, "<frozen runpy>")
"""Files whose frames are no part of the user's traceback."""


def _main() -> None:
    script = sys.argv[1]
    del sys.argv[0]
    _arrange_path(script)
    try:
        faulthandler.enable(all_threads=True)
    except (OSError, RuntimeError, ValueError):  # standard error is no file
        pass
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit:
        raise
    except BaseException as error:
        error.with_traceback(_without_us(error.__traceback__))
        if isinstance(error, Exception):
            _write_down(error)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.excepthook = lambda *_: None  # it is printed; the rest is as always
        raise


def _arrange_path(script: str) -> None:
    """Let the script's folder be first, as `python SCRIPT` does; a folder or zip runpy adds."""
    if getattr(sys.flags, "safe_path", False):
        return
    del sys.path[0]
    if pkgutil.get_importer(script) is None:
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))


def _without_us(begin: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame of the script on; None when it did not begin."""
    found = begin
    while found is not None and found.tb_frame.f_code.co_filename in _OURS:
        found = found.tb_next
    return found


def _write_down(error: Exception) -> None:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    stack = traceback.format_exception(type(error), error, error.__traceback__)
    seconds = int(time.time())  # noqa: TID251  # the form asks for it
    extra = {"py_callstack": "".join(stack), "timestamp": str(seconds)}
    message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
    try:
        with open(path, "w") as file:
            json.dump({"message": message}, file)
    except OSError as failed:
        print(f"cannot write {path}: {failed}", file=sys.stderr)


if __name__ == "__main__":
    _main()
