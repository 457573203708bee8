"""The file from which a fresh interpreter takes the function and its arguments.

A function is pickled by name: the worker imports its module. A main module with a file is imported
there as `__mp_main__`, as `multiprocessing` does. In a notebook the main module has no file, so its
functions and classes are pickled by value, which takes cloudpickle.
"""

from __future__ import annotations

import importlib
import os
import pickle
from collections import ChainMap
from collections.abc import Callable
from multiprocessing import spawn
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, BinaryIO

_PROTOCOL = 5
"""Writes large arguments to the file without a second copy."""
_FILE_NAME = 10
"""Which argument of `types.CodeType` is the name of the file."""

_MAIN = {"init_main_from_name", "init_main_from_path"}
"""Where the worker finds the main module: in the path of modules, or in a file."""


class UnpicklableFunction(pickle.PicklingError):
    """The function, or one of its arguments, cannot be sent to another interpreter."""

    def __init__(self, name: str, why: str, advice: str) -> None:
        """Carry the function's name, the reason, and what to do."""
        super().__init__(f"{name} and its arguments cannot be pickled: {why}; {advice}")


class _ByNamePickler(pickle.Pickler):
    """Refuses what a worker cannot import, because the main module has no file."""

    def reducer_override(self, value: Any) -> Any:
        """Refuse functions and classes of the main module."""
        if isinstance(value, (FunctionType, type)) and value.__module__ == "__main__":
            why = f"{value.__qualname__} is defined in a main module without a file"
            raise pickle.PicklingError(why)
        return NotImplemented


def write_payload(path: Path, entrypoint: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Write what a fresh interpreter needs for the call.

    Args:
        path: a new file.
        entrypoint: the function.
        args: its arguments.

    Raises:
        UnpicklableFunction: with advice.
        OSError: the file cannot be written.
        RuntimeError: the calling process is a worker that imports its main module.
    """
    preparation = _preparation()
    with open(path, "xb") as file:
        pickle.dump(preparation, file, _PROTOCOL)
        begin = file.tell()
        for pickler, is_by_value in _picklers(not _MAIN.isdisjoint(preparation)):
            try:
                pickler(file, _PROTOCOL).dump((entrypoint, args, is_by_value))
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001 - an object may raise anything when pickled
                failure = error
                file.seek(begin)
                file.truncate()
            else:
                return
    name = getattr(entrypoint, "__qualname__", repr(entrypoint))
    raise UnpicklableFunction(name, str(failure), _advice()) from failure


def _preparation() -> dict[str, Any]:
    """Return what `multiprocessing.spawn.prepare` needs.

    The name of the process and its folder are left out: the helper sets the folder. So is a main
    module whose file does not exist, such as `<stdin>`.
    """
    preparation = spawn.get_preparation_data("")
    preparation["authkey"] = bytes(preparation["authkey"])  # which refuses to be pickled otherwise
    left_out = {"name", "dir"}
    if not os.path.exists(preparation.get("init_main_from_path", "")):
        left_out.add("init_main_from_path")
    return {key: value for key, value in preparation.items() if key not in left_out}


def _picklers(is_main_importable: bool) -> list[tuple[Callable[[BinaryIO, int], Any], bool]]:
    """Return the picklers to try, and whether each pickles by value what has no module."""
    by_value = _cloudpickle()
    last = [] if by_value is None else [(_keeping_file_names(by_value.Pickler), True)]
    if is_main_importable:
        return [(pickle.Pickler, False), *last]
    return last or [(_ByNamePickler, False)]


def _keeping_file_names(base: Any) -> Any:
    """Return cloudpickle's pickler, but with the names of files in code.

    Since 3.1.3 it writes "<dynamic-code>" instead, and no traceback could show the lines of a cell.
    """
    reduce = base.dispatch_table[CodeType]

    def reduce_code(code: CodeType) -> tuple[type[CodeType], tuple[Any, ...]]:
        make, args = reduce(code)
        return make, (*args[:_FILE_NAME], code.co_filename, *args[_FILE_NAME + 1 :])

    table = ChainMap({CodeType: reduce_code}, base.dispatch_table)
    return type("FileNamesPickler", (base,), {"dispatch_table": table})


def _cloudpickle() -> ModuleType | None:
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return None


def _advice() -> str:
    choices = "define them in a module, or use the start method fork"
    return choices if _cloudpickle() else f"{choices}, or install cloudpickle"
