"""Runs a script as `__main__` by runpy, and records the exception that ends it.

Run as `python -u run_path.py SCRIPT ARG…`. The exception goes to $TORCHELASTIC_ERROR_FILE in the
form of torch's `@record`, which torch wraps around workers that are functions. The script does not
see this file in sys.argv, sys.path or tracebacks.
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
"""Files whose frames do not belong in the user's traceback."""


def _main() -> None:
    script = sys.argv[1]
    del sys.argv[0]
    _arrange_path(script)
    try:
        faulthandler.enable(all_threads=True)
    except (OSError, RuntimeError, ValueError):  # standard error is not a file
        pass
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit:
        raise
    except BaseException as error:
        error.with_traceback(_without_ours(error.__traceback__))
        if isinstance(error, Exception):
            _record(error)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.excepthook = lambda *_: None  # printed already; the interpreter does the rest
        raise


def _arrange_path(script: str) -> None:
    """Put the script's folder first, as `python SCRIPT` does; runpy itself adds a folder or zip."""
    if getattr(sys.flags, "safe_path", False):
        return
    del sys.path[0]
    if pkgutil.get_importer(script) is None:
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))


def _without_ours(begin: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the script's first frame on; None if no frame is the script's."""
    trace = begin
    while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
        trace = trace.tb_next
    return trace


def _record(error: Exception) -> None:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    stack = traceback.format_exception(type(error), error, error.__traceback__)
    seconds = int(time.time())  # noqa: TID251  # the form requires it
    extra = {"py_callstack": "".join(stack), "timestamp": str(seconds)}
    message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
    try:
        with open(path, "w") as file:
            json.dump({"message": message}, file)
    except OSError as failed:
        print(f"cannot write {path}: {failed}", file=sys.stderr)


if __name__ == "__main__":
    _main()
