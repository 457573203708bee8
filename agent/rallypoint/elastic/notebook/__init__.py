"""Launch a function on several workers from a notebook or a terminal, in one line."""

from rallypoint.elastic.notebook.launching import launch
from rallypoint.elastic.notebook.worker_error import WorkerError

__all__ = ["WorkerError", "launch"]
