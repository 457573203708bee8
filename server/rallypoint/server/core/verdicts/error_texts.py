"""Error texts of libraries, as data: they distinguish a lost peer from a worker's own cause.

Each row is one text of one library. `symptoms` compiles the tables and reads errors with them; the
tests check every row against its example. To teach the coordinator a new text, add a row.

An example is the library's output with other addresses and numbers. The texts of torch 2.13 (CPU)
were printed in our runs or are in its shared libraries. The other texts are from the issues of
pytorch and nccl; the version is as exact as the issue.
"""

from __future__ import annotations

from typing import NamedTuple


class ErrorText(NamedTuple):
    """One text to look for in an error."""

    pattern: str
    """Regular expression, compiled with MULTILINE and searched in the error's body."""
    library: str
    """Library that writes the text."""
    version: str
    """A version that writes it."""
    example: str
    """An error with the text: its headline, and further lines if one of them has the text."""


_GLOO = r"gloo/[^\s\]]{1,200}:\d+\] .{0,300}"
"""The source location in front of every gloo error."""
_PAIR = "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc"
_BUFFER = "RuntimeError: [/__w/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc"
_DIST = r"^(?:torch\.distributed\.)?Dist"
_NCCL = _DIST + r"BackendError\b(?s:.{0,1000})"
_NCCL_ERROR = "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed"
_TENSORPIPE = r" \(this error originated at tensorpipe/"

SHARED_BEGINS = (_GLOO, _NCCL)
"""Begins of several patterns. Each is searched once for all of them: that takes the most time."""

LOST_PEER = (
    # gloo: a peer ended, hangs or was never there.
    ErrorText(
        _GLOO + "Connection closed",
        "gloo",
        "torch 2.13",
        f"{_PAIR}:553] Connection closed by peer [127.0.0.1]:58604. This is typically caused by a "
        "remote worker crashing.",
    ),
    ErrorText(
        _GLOO + "Connection reset",
        "gloo",
        "torch 2.13",
        f"{_PAIR}:537] Read error [127.0.0.1]:27022: Connection reset by peer. This is typically "
        "caused by a remote worker hanging or bugs in the application.",
    ),
    ErrorText(
        _GLOO + "Connection refused",
        "gloo",
        "torch 2.13",
        f"{_PAIR}:799] connect [127.0.0.1]:1: Connection refused",
    ),
    ErrorText(
        _GLOO + "Broken pipe",
        "gloo",
        "torch 2.13",
        f"{_PAIR}:300] writev [127.0.0.1]:27022: Broken pipe",
    ),
    ErrorText(
        _GLOO + "Read error",
        "gloo",
        "torch 2.13",
        f"{_PAIR}:537] Read error [127.0.0.1]:27022: Operation not permitted",
    ),
    ErrorText(
        _GLOO + "[Tt]imed out",
        "gloo",
        "torch 2.13",
        f"{_BUFFER}:78] Timed out waiting 4000ms for recv operation to complete",
    ),
    ErrorText(
        _GLOO + "[Tt]imeout",
        "gloo",
        "torch 2.13",
        f"{_PAIR}:211] Application timeout caused pair closure",
    ),
    ErrorText(
        "Gloo connectFullMesh failed",
        "torch",
        "2.13",
        "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no "
        "error",
    ),
    ErrorText(
        r"monitoredBarrier in \d+ ms",
        "torch",
        "2.13",
        "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 5000 ms",
    ),
    ErrorText(
        "successfully reached monitoredBarrier, but",
        "torch",
        "2.13",
        "RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while "
        "waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.",
    ),
    # The store and the sockets below it.
    ErrorText(
        _DIST + r"NetworkError\b",
        "torch",
        "2.13",
        "torch.distributed.DistNetworkError: Connection reset by peer",
    ),
    ErrorText(
        _DIST + r"StoreError\b",
        "torch",
        "2.13",
        "torch.distributed.DistStoreError: wait timeout after 10000ms, keys: /step",
    ),
    ErrorText(
        r"^RuntimeError: Connection (?:reset|closed) by peer$",
        "torch",
        "1.x",
        "RuntimeError: Connection reset by peer",
    ),
    ErrorText("^RuntimeError: Broken pipe$", "torch", "1.5", "RuntimeError: Broken pipe"),
    ErrorText("^RuntimeError: Socket Timeout$", "torch", "2.13", "RuntimeError: Socket Timeout"),
    ErrorText(
        "^RuntimeError: Stop_waiting response is expected$",
        "torch",
        "2.13",
        "RuntimeError: Stop_waiting response is expected",
    ),
    ErrorText(
        "Failed to recv, got 0 bytes",
        "torch",
        "2.13",
        "RuntimeError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote "
        "server shutdown or crash?",
    ),
    ErrorText(
        "Failed to send, sent 0 bytes",
        "torch",
        "2.13",
        "RuntimeError: Failed to send, sent 0 bytes. Connection was likely closed. Did the remote "
        "server shutdown or crash?",
    ),
    # NCCL, and torch's watchdog over it.
    ErrorText(
        _NCCL + "got error:",
        "torch",
        "2.x",
        "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving "
        "ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got "
        "error: Connection reset by peer",
    ),
    ErrorText(
        _NCCL + "[Tt]imeout",
        "torch",
        "2.x",
        "torch.distributed.DistBackendError: [4] is setting up NCCL communicator and retrieving "
        "ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got "
        "error: Socket Timeout",
    ),
    ErrorText(
        _NCCL + "NCCL communicator was aborted",
        "torch",
        "2.x",
        "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 2.",
    ),
    ErrorText(
        "ncclRemoteError",
        "NCCL",
        "2.21.5",
        f"{_NCCL_ERROR}/c10d/NCCLUtils.hpp:268, network error, NCCL version 2.21.5\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process "
        "exiting prematurely.\nLast error:\n"
        "socketProgressOpt: Call to recv failed : Connection reset by peer",
    ),
    ErrorText(
        "remote process exited",
        "NCCL",
        "2.14.3",
        f"{_NCCL_ERROR}/c10d/ProcessGroupNCCL.cpp:1275, internal error, NCCL version 2.14.3\n"
        "ncclInternalError: Internal check failed.\nLast error:\n"
        "Net : Connection closed by remote peer, remote process exited",
    ),
    ErrorText(
        "watchdog thread terminated with exception",
        "torch",
        "2.x",
        "[PG 1 Rank 6] Process group watchdog thread terminated with exception: [Rank 6] ...",
    ),
    ErrorText(
        "Watchdog caught collective operation timeout",
        "torch",
        "2.x",
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=880, "
        "OpType=BROADCAST, Timeout(ms)=1800000) ran for 1800778 milliseconds before timing out.",
    ),
    # TensorPipe, below torch.distributed.rpc.
    ErrorText(
        r"\beof" + _TENSORPIPE,
        "tensorpipe",
        "torch 1.9",
        "RuntimeError: eof (this error originated at tensorpipe/transport/shm/"
        "connection_impl.cc:259)",
    ),
    ErrorText(
        "[Cc]onnection reset by peer" + _TENSORPIPE,
        "tensorpipe",
        "torch 1.x",
        "RuntimeError: ECONNRESET: connection reset by peer (this error originated at "
        "tensorpipe/transport/uv/connection_impl.cc:132)",
    ),
)
"""Texts of libraries about another worker that is gone, hangs or never joined."""

OWN_CAUSE = (
    ErrorText(
        "CUDA error",
        "torch",
        "2.x",
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    ),
    ErrorText(
        "CUDA out of memory",
        "torch",
        "2.13",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ),
    ErrorText(
        "[Uu]nhandled cuda error",
        "NCCL",
        "2.21.5",
        f"{_NCCL_ERROR}/c10d/NCCLUtils.hpp:268, unhandled cuda error, NCCL version 2.21.5\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
        "Cuda failure 'out of memory'",
    ),
    ErrorText(
        "ncclInvalid",
        "NCCL",
        "2.21.5",
        f"{_NCCL_ERROR}/c10d/NCCLUtils.hpp:268, invalid usage, NCCL version 2.21.5\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
    ),
    ErrorText(
        "failed to (?:listen|bind)",
        "torch",
        "2.13",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
        "network address. port: 29500, useIpv6: false",
    ),
    ErrorText(
        "EADDRINUSE",
        "torch",
        "2.13",
        "torch.distributed.DistNetworkError: port: 29500, code: -98, name: EADDRINUSE",
    ),
    ErrorText(
        "Address already in use",
        "glibc",
        "any",
        "torch.distributed.DistNetworkError: message: Address already in use",
    ),
)
"""Texts in the same errors when the cause is on this node. They outrank LOST_PEER."""

BROKEN_CONNECTION = (
    ErrorText(
        r"ConnectionResetError(?:: \[Errno 104\] Connection reset by peer)?$",
        "Python",
        "3",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
    ),
    ErrorText(
        "ConnectionResetError: Connection lost$",
        "asyncio",
        "Python 3",
        "ConnectionResetError: Connection lost",
    ),
    ErrorText(
        r"ConnectionAbortedError(?:: \[Errno 103\] .*)?$",
        "Python",
        "3",
        "ConnectionAbortedError: [Errno 103] Software caused connection abort",
    ),
    ErrorText(
        r"BrokenPipeError(?:: \[Errno 32\] Broken pipe)?$",
        "Python",
        "3",
        "BrokenPipeError: [Errno 32] Broken pipe",
    ),
    ErrorText("EOFError$", "multiprocessing", "Python 3", "EOFError"),
)
"""Headlines of Python's own errors after a failed system call. Such a connection may have been to
any process, so these count only for errors that nothing else explains."""

WATCHDOG_FRAME = (
    ErrorText(
        "WorkNCCL::checkTimeout",
        "torch",
        "2.x",
        "frame #1: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout() + 0x2b4 (0x7f5a in "
        "libtorch_cuda.so)",
    ),
    ErrorText(
        "Exception raised from checkTimeout",
        "torch",
        "2.x",
        "Exception raised from checkTimeout at ProcessGroupNCCL.cpp:632 (most recent call first):",
    ),
)
"""Lines of a C++ stack below torch's NCCL watchdog: another worker did not take part in time."""

CUDA_FRAME = (
    ErrorText(
        "c10_cuda_check_implementation",
        "torch",
        "2.x",
        "frame #3: c10::cuda::c10_cuda_check_implementation(int, char const*) + 0x118 (0x7f5a in "
        "libc10_cuda.so)",
    ),
)
"""Lines of a C++ stack below a failed CUDA call. They outrank WATCHDOG_FRAME."""
