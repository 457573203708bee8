"""Makes a worker's interpreter a forkserver: it imports modules, then forks the workers.

The agent puts this folder first on PYTHONPATH, so `site` imports this file instead of a
`sitecustomize` of the user's. When it returns, in a fork, CPython itself runs the main program:
`__main__`, `sys.argv`, `sys.path[0]`, tracebacks and pickles are what they are in any fresh
interpreter.

RALLYPOINT_PRELOAD_FDS names two Unix sockets: to the agent, and to the helper, which is this
process's parent. The agent's is a stream. A frame on it is a 4-byte big-endian length and that many
bytes of JSON, pure ASCII; bytes outside UTF-8 are surrogate escapes. What the helper sends is in
helper/forkservers.py.

    to the agent     hello    {}                        this file runs
    from the agent   prepare  {modules, calls, path,    import, with `path` first on sys.path;
                               program}                 the command line ends with `program`
    to the agent     ready    {failed: [{name, error}], refusal, culprit}
    from the agent   serve    {shown}                   fork from now on, for the helper
                     a byte                             look whether an imported file was changed
    to the agent     stale    {why}                     at any time; it ends then

`shown` has what the imports have written, by descriptor; each worker writes it again.

RALLYPOINT_PRELOAD_RECORD names a file instead: the names of all modules that the program imports
are appended to it, for the forkserver of a later round.

RALLYPOINT_ARMED asks for what rallypoint_armed.py does in a worker. It may come with another one.

This file and those beside it use the standard library only, and Python 3.8 or newer.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing would take a millisecond of every start
if TYPE_CHECKING:
    from typing import Any

FDS = "RALLYPOINT_PRELOAD_FDS"
RECORD = "RALLYPOINT_PRELOAD_RECORD"
ARMED = "RALLYPOINT_ARMED"
PYTHONPATH = "RALLYPOINT_PRELOAD_PYTHONPATH"
"""What PYTHONPATH was; absent: it was not set."""
FOLDER = os.path.dirname(os.path.abspath(__file__))


def _import_own(name: str) -> Any:
    """Return a module beside this one, which no program can find afterwards.

    What it needs is the standard library's, and loaded again by the program: that may have its own
    json.py.
    """
    path = sys.path
    caches: Any = (sys.modules, sys.path_importer_cache)
    before = [set(cache) for cache in caches]
    library = os.path.dirname(os.__file__)
    sys.path = [FOLDER, library, os.path.join(library, "lib-dynload"), *path]
    try:
        return __import__(name)
    finally:
        sys.path = path
        for cache, known in zip(caches, before):  # noqa: B905 - Python 3.8
            for new in set(cache) - known:
                del cache[new]


def _restore() -> list[str]:
    """Hide that this file was here; return the variables that asked for it."""
    asked = [os.environ.pop(name, "") for name in (FDS, RECORD, ARMED)]
    if any(asked):
        before = os.environ.pop(PYTHONPATH, None)
        if before is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = before
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != FOLDER]
    sys.path_importer_cache.pop(FOLDER, None)
    return asked


def _run_own() -> BaseException | None:
    """Import the user's own sitecustomize in place of this one; return how that ended."""
    del sys.modules["sitecustomize"]
    try:
        __import__("sitecustomize")
    except BaseException as error:  # noqa: BLE001 - site reports it when this file ends
        return error
    return None


def main() -> None:
    """Make this interpreter a forkserver if it shall be one."""
    server = _import_own("rallypoint_forkserver") if FDS in os.environ else None
    recorder = _import_own("rallypoint_recorder") if RECORD in os.environ else None
    armed = _import_own("rallypoint_armed") if ARMED in os.environ else None
    fds, record, prefix = _restore()
    before = dict(os.environb)
    if armed is not None and server is None:  # a forkserver arms its forks
        armed.arm(prefix)
    outcome = _run_own()
    if server is not None:
        try:
            one = server.Forkserver([int(fd) for fd in fds.split(",")], before)
        except OSError:  # a wrapper, or the user's sitecustomize, has closed a socket
            os._exit(1)
        one.serve()
    elif recorder is not None:
        sys.meta_path.insert(0, recorder.Recorder(record))
    if outcome is not None:  # also "no module named sitecustomize", which site passes over
        raise outcome


if __name__ == "sitecustomize":  # imported by site
    main()
