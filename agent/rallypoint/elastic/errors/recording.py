"""Records the exception that ends a function, so that a launcher can report it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar, overload

from rallypoint.elastic.errors.handler import ErrorHandler, get_error_handler

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


@overload
def record(
    fn: Callable[P, R], error_handler: ErrorHandler | None = None
) -> Callable[P, R | None]: ...


@overload
def record(
    fn: None = None, error_handler: ErrorHandler | None = None
) -> Callable[[Callable[P, R]], Callable[P, R | None]]: ...


def record(
    fn: Callable[P, R] | None = None, error_handler: ErrorHandler | None = None
) -> Callable[P, R | None] | Callable[[Callable[P, R]], Callable[P, R | None]]:
    """Decorate the main function of a process to record the exception that ends it.

    An exception is written to the error file and raised. Of a `ChildFailedError`, torch's or ours,
    the error of the worker that failed first is written instead. `sys.exit(0)` becomes a return of
    None; other exits are not recorded.

    Args:
        fn: the function; None: return a decorator, as for `@record(error_handler=…)`.
        error_handler: what records; None: the one of `get_error_handler`.
    """
    handler = error_handler or get_error_handler()

    def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
        @wraps(function)
        def recorded(*args: P.args, **kwargs: P.kwargs) -> R | None:
            handler.initialize()
            try:
                return function(*args, **kwargs)
            except SystemExit as end:
                if end.code == 0:
                    return None
                raise
            except Exception as error:
                _record(handler, error)
                raise

        return recorded

    return decorate if fn is None else decorate(fn)


def _record(handler: ErrorHandler, error: Exception) -> None:
    get_first_failure = getattr(error, "get_first_failure", None)
    if get_first_failure is None:
        handler.record_exception(error)
        return
    rank, failure = get_first_failure()
    if os.path.isfile(failure.error_file):
        handler.dump_error_file(failure.error_file, failure.exitcode)
    else:
        logger.info(
            "rank %s failed without an error file: decorate its function with @record", rank
        )
