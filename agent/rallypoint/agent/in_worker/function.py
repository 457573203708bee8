"""Runs a function as a worker: records the exception that ends it, and stores what it returns.

Run as `python function.py PAYLOAD RESULT LOCAL_RANK`. PAYLOAD is a file with two pickles: what
`multiprocessing` needs to prepare the interpreter, and the call: a function, the tuple of its
arguments, and whether they are pickled by value. The exception goes to $TORCHELASTIC_ERROR_FILE in
the form of torch's `@record`. The return value goes to RESULT, which appears only when it is
complete.

The process ends without the finalization of the interpreter. Threads of torch may need the
interpreter at that moment, which aborts the process: a function that has returned would fail.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import io
import json
import os
import pickle
import signal
import string
import sys
import threading
import time
import traceback
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    Call = tuple[Callable[..., Any], tuple[Any, ...], bool]
    """A function, its arguments, and whether what it returns may be pickled by value."""

_PICKLE_PROTOCOL = 5
"""Writes large objects to the file without a second copy."""
_FLUSH_S_MAX = 5.0
"""How long the end waits for files that are open: a daemon thread may be stuck in a write."""
_UNFLUSHED = 120
"""Python's exit code when its output cannot be written at the end."""


def _main() -> None:
    payload, result, local_rank = sys.argv[1:]
    for stream in (sys.stdout, sys.stderr):
        # Whole lines, at once, even if PYTHONUNBUFFERED asks for less: workers share the stream.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the folder of this file
    run_to_end(lambda: run(lambda: load(payload), result, local_rank))


def run_to_end(work: Callable[[], None]) -> NoReturn:
    """Do the work of this process, report what it raises, and end the process."""
    is_interrupted = False
    try:
        try:
            work()
        except SystemExit:
            raise
        except BaseException as error:  # noqa: BLE001 - the root of the worker
            is_interrupted = isinstance(error, KeyboardInterrupt)
            report(error)
            sys.exit(1)
        code = 0
    except SystemExit as ended:
        code = _find_code(ended)
    end(code, is_interrupted=is_interrupted)


def _find_code(ended: SystemExit) -> int:
    """Return the exit code as the interpreter does; print what is not a number."""
    if ended.code is None or isinstance(ended.code, int):
        return ended.code or 0
    print(ended.code, file=sys.stderr)
    return 1


def end(code: int, *, is_interrupted: bool) -> NoReturn:
    """End this process as the interpreter does, but for its finalization.

    Args:
        code: its exit code.
        is_interrupted: SIGINT ends it instead, as an interpreter with a `KeyboardInterrupt`.
    """
    threads: Any = threading
    for finish in (threads._shutdown, atexit._run_exitfuncs):
        try:
            finish()
        except BaseException:  # noqa: BLE001 - such as an interruption
            traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:  # noqa: BLE001 - the program may have put anything there
            code = _UNFLUSHED
    try:
        flusher = threading.Thread(target=_flush_files, daemon=True)
        flusher.start()
        flusher.join(_FLUSH_S_MAX)
        if is_interrupted:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    finally:  # also where no further thread can start
        os._exit(code & 0xFF)


def _flush_files() -> None:
    """Write what files that the program has left open hold, also those of C."""
    kind: Any = io.IOBase.__base__  # the class of C below it: those above ask each class in Python
    files = [one for one in gc.get_objects() if issubclass(type(one), kind)]
    for file in sorted(files, key=lambda one: isinstance(one, io.BufferedWriter)):
        with suppress(Exception):  # it is closed, or its disk is full
            file.flush()
    with suppress(Exception):
        import ctypes

        ctypes.CDLL(None).fflush(None)


def load(payload: str) -> Call:
    """Prepare this interpreter as `multiprocessing` does, and return the call of the payload."""
    from multiprocessing import process, spawn

    current: Any = process.current_process()
    current._inheriting = True  # a main module that starts workers itself is refused with advice
    try:
        with open(payload, "rb") as file:
            spawn.prepare(pickle.load(file))
            call: Call = pickle.load(file)
    finally:
        del current._inheriting
    return call


def run(get_call: Callable[[], Call], result: str, local_rank: str) -> None:
    """Call the function, and store what it returns.

    Args:
        get_call: returns the call; what it raises is a failure of the worker.
        result: path for the return value; earlier values of this local rank are removed.
        local_rank: replaces `${local_rank}` in arguments that are strings, as torch does.
    """
    try:
        faulthandler.enable(all_threads=True)
    except (OSError, RuntimeError, ValueError):  # standard error is not a file
        pass
    folder = os.path.dirname(result)
    for name in os.listdir(folder):
        if name.startswith(f"{local_rank}-"):  # of a round that did not succeed
            os.remove(os.path.join(folder, name))
    function, args, may_copy = get_call()
    try:
        value = function(*(_substitute(arg, local_rank) for arg in args))
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
        value = None
    _store(value, result, getattr(function, "__qualname__", repr(function)), may_copy)


def _substitute(arg: Any, local_rank: str) -> Any:
    if not isinstance(arg, str):
        return arg
    return string.Template(arg).safe_substitute(local_rank=local_rank)


def _store(value: Any, result: str, name: str, may_copy: bool) -> None:
    part = result + ".part"
    with open(part, "wb") as file:
        try:
            pickle.Pickler(file, _PICKLE_PROTOCOL).dump(value)
        except OSError as error:
            text = f"cannot store what {name} returned: {error.strerror}"
            raise OSError(error.errno, text) from error
        except Exception as error:  # an object may raise anything when it is pickled
            if not (may_copy and _store_by_value(value, file)):
                text = f"{name} returned a value that cannot be pickled"
                raise pickle.PicklingError(f"{text}: {_describe(error)}") from error
    os.rename(part, result)


def _store_by_value(value: Any, file: Any) -> bool:
    """Store a value of a class that has no module, such as a notebook's; return whether it is.

    Raises:
        OSError: the file cannot be written.
    """
    try:
        import cloudpickle
    except ImportError:
        return False
    file.seek(0)
    file.truncate()
    try:
        cloudpickle.Pickler(file, _PICKLE_PROTOCOL).dump(value)
    except OSError:
        raise
    except Exception:  # noqa: BLE001 - the reason that pickle itself gave is reported
        return False
    return True


def report(error: BaseException) -> None:
    """Record the exception that ends the worker, and print it; leave out frames of this folder."""
    error.with_traceback(_without_ours(error.__traceback__))
    if isinstance(error, Exception):
        _record(error)
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception as failed:  # noqa: BLE001 - the program's own hook may raise anything
        sys.__excepthook__(type(failed), failed, failed.__traceback__)


def _without_ours(begin: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the user's first frame on; None if no frame is the user's."""
    ours = os.path.dirname(__file__)
    trace = begin
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_globals.get("__name__") != "runpy" and (
            os.path.dirname(frame.f_code.co_filename) != ours
        ):
            break
        trace = trace.tb_next
    return trace


def _record(error: Exception) -> None:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    try:
        content = _root_cause(error) or _content(error)
        with open(path, "w") as file:
            json.dump(content, file)
    except (OSError, ValueError) as failed:
        print(f"cannot write {path}: {failed}", file=sys.stderr)


def _content(error: Exception) -> Any:
    stack = traceback.format_exception(type(error), error, error.__traceback__)
    seconds = int(time.time())  # noqa: TID251  # the form requires it
    extra = {"py_callstack": "".join(stack), "timestamp": str(seconds)}
    return {"message": {"message": _describe(error), "extraInfo": extra}}


def _root_cause(error: Exception) -> Any:
    """Return what the first failed worker of a launcher in this worker has recorded, if anything.

    The exception is a ChildFailedError, torch's or ours.
    """
    if not hasattr(error, "get_first_failure"):
        return None
    _, failure = error.get_first_failure()
    try:
        with open(failure.error_file) as file:
            content = json.load(file)
    except OSError:  # it has recorded nothing
        return None
    if failure.exitcode and isinstance(content.get("message"), dict):
        content["message"]["errorCode"] = failure.exitcode
    return content


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - its text is the user's code, too
        return f"{type(error).__name__}: <its text cannot be read>"


if __name__ == "__main__":
    _main()
