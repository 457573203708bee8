"""Error texts of libraries, as data: they distinguish a lost peer from a worker's own cause.

Each row is a regular expression, compiled with MULTILINE and searched in the error's body.
`symptoms` compiles the tables and reads errors with them; its tests have an example for every row.
"""

from __future__ import annotations

_GLOO = r"gloo/[^\s\]]{1,200}:\d+\] .{0,300}"
"""The source location in front of every gloo error."""
_DIST = r"^(?:torch\.distributed\.)?Dist"
_NCCL = _DIST + r"BackendError\b(?s:.{0,1000})"
_TENSORPIPE = r" \(this error originated at tensorpipe/"

SHARED_BEGINS = (_GLOO, _NCCL)
"""Begins of several patterns. Each is searched once for all of them: that takes the most time."""

LOST_PEER = (
    # gloo: a peer ended, hangs or was never there.
    _GLOO + "Connection closed",
    _GLOO + "Connection reset",
    _GLOO + "Connection refused",
    _GLOO + "Broken pipe",
    _GLOO + "Read error",
    _GLOO + "[Tt]imed out",
    _GLOO + "[Tt]imeout",
    "Gloo connectFullMesh failed",
    r"monitoredBarrier in \d+ ms",
    "successfully reached monitoredBarrier, but",
    # The store and the sockets below it.
    _DIST + r"NetworkError\b",
    _DIST + r"StoreError\b",
    r"^RuntimeError: Connection (?:reset|closed) by peer$",
    "^RuntimeError: Broken pipe$",
    "^RuntimeError: Socket Timeout$",
    "^RuntimeError: Stop_waiting response is expected$",
    "Failed to recv, got 0 bytes",
    "Failed to send, sent 0 bytes",
    # NCCL, and torch's watchdog over it.
    _NCCL + "got error:",
    _NCCL + "[Tt]imeout",
    _NCCL + "NCCL communicator was aborted",
    "ncclRemoteError",
    "remote process exited",
    "watchdog thread terminated with exception",
    "Watchdog caught collective operation timeout",
    # TensorPipe, below torch.distributed.rpc.
    r"\beof" + _TENSORPIPE,
    "[Cc]onnection reset by peer" + _TENSORPIPE,
)
"""Texts of libraries about another worker that is gone, hangs or never joined."""

COLLECTIVE_TIMEOUT = (
    _GLOO + r"Timed out waiting \d+ms for (?:send|recv)",
    _GLOO + "Application timeout",
    r"monitoredBarrier in \d+ ms",
    "successfully reached monitoredBarrier, but",
    _NCCL + "[Tt]imeout",
    "Watchdog caught collective operation timeout",
)
"""Those of LOST_PEER about a rank that did not come to a collective, or to a send or receive, in
time. It may live."""

OWN_CAUSE = (
    "CUDA error",
    "CUDA out of memory",
    "[Uu]nhandled cuda error",
    "ncclInvalid",
    "failed to (?:listen|bind)",
    "EADDRINUSE",
    "Address already in use",
)
"""Texts in the same errors when the cause is on this node. They outrank LOST_PEER."""

BROKEN_CONNECTION = (
    r"ConnectionResetError(?:: \[Errno 104\] Connection reset by peer)?$",
    "ConnectionResetError: Connection lost$",
    r"ConnectionAbortedError(?:: \[Errno 103\] .*)?$",
    r"BrokenPipeError(?:: \[Errno 32\] Broken pipe)?$",
    "EOFError$",
)
"""Headlines of Python's own errors after a failed system call. Such a connection may have been to
any process, so these count only for errors that nothing else explains."""

WATCHDOG_FRAME = (
    "WorkNCCL::checkTimeout",
    "Exception raised from checkTimeout",
)
"""Lines of a C++ stack below torch's NCCL watchdog: another worker did not take part in time."""

CUDA_FRAME = ("c10_cuda_check_implementation",)
"""Lines of a C++ stack below a failed CUDA call. They outrank WATCHDOG_FRAME."""
