"""Pauses a worker's interpreter before its main program: it imports modules, then waits.

The agent puts this folder first on PYTHONPATH, so `site` imports this file instead of a
`sitecustomize` of the user's. When it returns, CPython itself runs the main program: `__main__`,
`sys.argv`, `sys.path[0]`, tracebacks and pickles are what they are in any fresh interpreter.

RALLYPOINT_STANDBY_FD names a Unix stream socket to the agent. A frame is a 4-byte big-endian length
and that many bytes of JSON, pure ASCII; bytes outside UTF-8 are surrogate escapes.

    to the agent     hello    {python}
    from the agent   prepare  {modules, calls, path,    import, with `path` first on sys.path;
                               program}                 the command line ends with `program`
    to the agent     ready    {failed: [{name, error}], took_ms, refusal}
    from the agent   look     {}                        whether an imported file was changed
    from the agent   run      {environ, argv, shown}, and the descriptors of stdin, stdout, stderr
    to the agent     running {} or stale {why}          stale at any time before; it ends then

`shown` has what the imports have written to pipes and terminals, by descriptor; the worker writes
it again.

RALLYPOINT_STANDBY_RECORD names a file instead: the names of all modules that the program imports
are appended to it, for the standbys of a later round.

Standard library only, and Python 3.8 or newer. The agent never imports this file.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing would take a millisecond of every start
if TYPE_CHECKING:
    from typing import Any

FD = "RALLYPOINT_STANDBY_FD"
RECORD = "RALLYPOINT_STANDBY_RECORD"
PYTHONPATH = "RALLYPOINT_STANDBY_PYTHONPATH"
"""What PYTHONPATH was; absent: it was not set."""


def _import_own(name: str) -> Any:
    """Return a module beside this one, which no program can find afterwards."""
    before = set(sys.modules)
    module = __import__(name)
    for new in set(sys.modules) - before:  # also what it needs: a program may have its own array.py
        del sys.modules[new]
    return module


def _restore() -> tuple[str, str]:
    """Hide that this file was here; return the variables that asked for it."""
    folder = os.path.dirname(os.path.abspath(__file__))
    fd, record = os.environ.pop(FD, ""), os.environ.pop(RECORD, "")
    if fd or record:
        before = os.environ.pop(PYTHONPATH, None)
        if before is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = before
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != folder]
    sys.path_importer_cache.pop(folder, None)
    return fd, record


def _run_own() -> BaseException | None:
    """Import the user's own sitecustomize in place of this one; return how that ended."""
    del sys.modules["sitecustomize"]
    try:
        __import__("sitecustomize")
    except BaseException as error:  # noqa: BLE001 - site reports it when this file ends
        return error
    return None


def main() -> None:
    """Pause this interpreter if it is a standby."""
    standby = _import_own("rallypoint_standby") if FD in os.environ else None
    recorder = _import_own("rallypoint_recorder") if RECORD in os.environ else None
    fd, record = _restore()
    environment = standby.rallypoint_main.Environment() if standby is not None else None
    outcome = _run_own()
    if standby is not None:
        try:
            one = standby.Standby(int(fd), environment)
        except OSError:  # a wrapper, or the user's sitecustomize, has closed the socket
            os._exit(1)
        one.wait()
    elif recorder is not None:
        sys.meta_path.insert(0, recorder.Recorder(record))
    if outcome is not None:  # also "no module named sitecustomize", which site passes over
        raise outcome


if __name__ == "sitecustomize":  # imported by site
    main()
