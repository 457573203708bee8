"""Errors of workers: how a worker records one, and how a launcher reports it.

Names, signatures and the form of the error file are those of torch 2.13's
`torch.distributed.elastic.multiprocessing.errors`.
"""

from __future__ import annotations

from rallypoint.elastic.errors.failures import ChildFailedError, ProcessFailure, SignalException
from rallypoint.elastic.errors.handler import ErrorHandler, get_error_handler
from rallypoint.elastic.errors.recording import record

__all__ = [
    "ChildFailedError",
    "ErrorHandler",
    "ProcessFailure",
    "SignalException",
    "get_error_handler",
    "record",
]
