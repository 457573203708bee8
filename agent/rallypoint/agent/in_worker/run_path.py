"""Runs a script as `__main__` by runpy, and records the exception that ends it.

Run as `python -u run_path.py SCRIPT ARG…`. For torch such a script is a function, so it ends like
one: see function.py beside this file. The script does not see either of them in sys.argv, sys.path,
sys.modules or tracebacks.
"""

from __future__ import annotations

import faulthandler
import os
import pkgutil
import runpy
import sys
from importlib import util
from typing import Any


def _main() -> None:
    script = sys.argv[1]
    del sys.argv[0]
    _arrange_path(script)
    try:
        faulthandler.enable(all_threads=True)
    except (OSError, RuntimeError, ValueError):  # standard error is not a file
        pass
    _load_neighbour("function").run_to_end(lambda: runpy.run_path(script, run_name="__main__"))


def _load_neighbour(name: str) -> Any:
    """Return a module of this folder, which the script cannot find."""
    path = os.path.join(os.path.dirname(__file__), name + ".py")
    spec: Any = util.spec_from_file_location("rallypoint_" + name, path)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _arrange_path(script: str) -> None:
    """Put the script's folder first, as `python SCRIPT` does; runpy itself adds a folder or zip."""
    if getattr(sys.flags, "safe_path", False):
        return
    del sys.path[0]
    if pkgutil.get_importer(script) is None:
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))


if __name__ == "__main__":
    _main()
