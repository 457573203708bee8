"""What the exception that ends torchrun means for the job.

torch calls `shutdown` for every end but a signal, and does not say why; but it calls it while the
exception is on its way.
"""

from __future__ import annotations

import inspect
from types import FrameType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import RendezvousError

from rallypoint.agent.core.held_round import ErrorRecord

_RUN: Any = inspect.unwrap(SimpleElasticAgent.run)
"""The run of torch's agent, without what measures it."""
TEXT_CHARS_MAX = 1_000
"""Of an error; the coordinator takes 1,024 characters of a reason."""


class Farewell(Struct, frozen=True, kw_only=True):
    """How a node ends."""

    text: str
    """One line."""
    exit_code: int | None = None
    """Of its first worker that failed, or 0; None: a signal, or it only leaves."""
    signum: int | None = None
    error: ErrorRecord | None = None
    ends_job: bool = False
    """It ends the job also when its round is being stopped for another reason."""

    @property
    def is_leaving(self) -> bool:
        """True when the node leaves without a result."""
        return self.exit_code is None and self.signum is None

    @property
    def is_failure(self) -> bool:
        """True when its workers have failed for good."""
        return not self.is_leaving and self.exit_code != 0

    def leaving(self) -> Farewell:
        """Return the same without a result."""
        return replace(self, exit_code=None, signum=None, error=None, ends_job=False)


def find_farewell(error: BaseException | None) -> Farewell:
    """Return how a node ends with this exception on its way; None: its workers have succeeded."""
    if error is None:
        return Farewell(text="its workers have succeeded", exit_code=0)
    if isinstance(error, ChildFailedError):
        return _failure(error)
    if isinstance(error, RendezvousError) or not isinstance(error, Exception):
        return Farewell(text=f"torchrun ends: {_describe(error)}")
    text = f"torchrun failed: {_describe(error)}"
    return Farewell(text=text, exit_code=1, error=ErrorRecord(text, "", None))


def is_too_early(caller: FrameType) -> bool:
    """Return whether torch calls `shutdown` before it knows how the node ends.

    The agent of torch before 2.8 does so, while it runs, whenever it stops its workers for good.
    The launcher calls it again at the end, when the agent has returned. Only then is a failure to
    be seen.
    """
    frame: FrameType | None = caller
    while frame is not None and frame.f_code is not _RUN.__code__:
        frame = frame.f_back
    return frame is not None


def is_crash_of_spare(error: BaseException | None) -> bool:
    """Return whether this is how torch ends after a RendezvousGracefulExitError.

    The run of its agent then has no result, and torch takes an attribute of that.
    """
    return isinstance(error, AttributeError) and error.name == "is_failed" and error.obj is None


def _failure(error: ChildFailedError) -> Farewell:
    rank, failure = error.get_first_failure()
    code = failure.exitcode
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    traceback = ""
    message = failure.error_file_data.get("message") if failure.error_file_data else None
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        traceback = str(extra.get("py_callstack", "")) if isinstance(extra, dict) else ""
    has_record = failure.error_file not in ("", "<N/A>")
    text = _cut(failure.message)
    return Farewell(
        text=f"rank {rank} failed with {how}" + (f": {text}" if has_record else ""),
        exit_code=None if code < 0 else code,
        signum=-code if code < 0 else None,
        error=ErrorRecord(text, traceback, None, failure.timestamp) if has_record else None,
        ends_job=True,
    )


def _describe(error: BaseException) -> str:
    text = _cut(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _cut(text: object) -> str:
    return " ".join(str(text).split())[:TEXT_CHARS_MAX]
