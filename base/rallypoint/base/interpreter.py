"""Keeps what is meant for the interpreter of the workers away from that of Rallypoint itself.

Workers inherit PYTHONPATH and its like from the agent, and may use other versions of the same
packages. An agent that imported those would not start. The variables themselves stay as they are.

Imported before everything else: any other module may come from PYTHONPATH, even one of
Python itself. So this module imports nothing but what each interpreter has loaded.
"""

from __future__ import annotations

import os
import site
import sys

COMMANDS = ("rallypoint", "coordinator", "node-agent")
"""The scripts that an installation makes."""
_VARIABLES = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONPLATLIBDIR",
    "PYTHONWARNINGS",
    "PYTHONDEVMODE",
    "PYTHONASYNCIODEBUG",
    "PYTHONINSPECT",
    "PYTHONOPTIMIZE",
    "PYTHONTRACEMALLOC",
    "PYTHONVERBOSE",
    "PYTHONPROFILEIMPORTTIME",
)
"""Those that change what a program does. Others, such as PYTHONUNBUFFERED, which many images set,
would not be worth another start of the interpreter."""
_HOME = os.path.realpath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 2))
"""The folder of `rallypoint`."""


def isolate() -> None:
    """Restart this command in a clean interpreter, if the environment changes this one.

    A program that calls a command as a function is not restarted. Its path is put in order:
    what PYTHONPATH names, and the folder that Python puts first, come last.
    """
    flags = compute_flags()
    is_deaf = bool(sys.flags.ignore_environment) or flags[0] == "-P"
    if not is_deaf and _is_changed() and _is_command() and sys.executable:
        os.execv(sys.executable, [sys.executable, *flags, *sys.orig_argv[1:]])
    last = _list_python_path()
    if not sys.flags.safe_path and sys.path[0]:
        last.add(os.path.realpath(sys.path[0]))
    last.discard(_HOME)
    sys.path.sort(key=lambda path: bool(path) and os.path.realpath(path) in last)


def compute_flags() -> list[str]:
    """Return the flags of an interpreter that finds Rallypoint, and ignores what it can.

    If Rallypoint itself is found by PYTHONPATH, or among the user's own packages, that stays.
    """
    if _HOME in _list_python_path():
        isolation = ["-P"]
    elif not site.ENABLE_USER_SITE or _HOME in map(os.path.realpath, site.getsitepackages()):
        isolation = ["-I"]
    else:
        isolation = ["-E", "-P"]
    written = ["-B"] * sys.dont_write_bytecode
    return [*isolation, *written, *(["-X", "utf8"] if sys.flags.utf8_mode else [])]


def hear_python_path() -> None:
    """Let this process import plug-ins from PYTHONPATH. Its own modules are found first."""
    sys.path += [path for path in _split_python_path() if path not in sys.path]


def list_workers_path() -> list[str]:
    """Return the folders where a worker with this very interpreter may find modules."""
    return [*_split_python_path(), site.getusersitepackages(), *sys.path]


def _is_changed() -> bool:
    has_own = bool(site.ENABLE_USER_SITE) and os.path.isdir(site.getusersitepackages())
    return has_own or any(os.environ.get(name) for name in _VARIABLES)


def _is_command() -> bool:
    main = sys.modules["__main__"]
    if main.__spec__ is not None:
        return main.__spec__.name.startswith("rallypoint.")
    return os.path.basename(os.path.realpath(sys.argv[0])) in COMMANDS


def _list_python_path() -> set[str]:
    return set(map(os.path.realpath, _split_python_path()))


def _split_python_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
