"""Last words and exits tell a victim from a cause, for every text that the libraries print."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from rallypoint.base.tracebacks import PrintedError, find_last_chain
from rallypoint.server.core.model.worker import ErrorRecord, Symptom, WorkerExit
from rallypoint.server.core.verdicts import symptoms
from rallypoint.server.core.verdicts.error_texts import (
    BROKEN_CONNECTION,
    CUDA_FRAME,
    LOST_PEER,
    OWN_CAUSE,
    WATCHDOG_FRAME,
)
from rallypoint.server.core.verdicts.symptoms import (
    LINES_MAX,
    classify,
    find_error,
    find_last_words,
    find_stack,
    is_collective_timeout,
)

PRIMARY, UNKNOWN, VICTIM = Symptom.PRIMARY, Symptom.UNKNOWN, Symptom.VICTIM
GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp"
HINT = "Check the logs of the remote worker before reporting an error. GLHF! 🏖️"
_PAIR = "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc"
_BUFFER = "RuntimeError: [/__w/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc"
_NCCL_ERROR = "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed"
EXAMPLES: dict[tuple[str, ...], tuple[str, ...]] = {
    LOST_PEER: (
        # gloo of torch 2.13
        f"{_PAIR}:553] Connection closed by peer [127.0.0.1]:58604. This is typically caused by a "
        "remote worker crashing.",
        f"{_PAIR}:537] Read error [127.0.0.1]:27022: Connection reset by peer. This is typically "
        "caused by a remote worker hanging or bugs in the application.",
        f"{_PAIR}:799] connect [127.0.0.1]:1: Connection refused",
        f"{_PAIR}:300] writev [127.0.0.1]:27022: Broken pipe",
        f"{_PAIR}:537] Read error [127.0.0.1]:27022: Operation not permitted",
        f"{_BUFFER}:78] Timed out waiting 4000ms for recv operation to complete",
        f"{_PAIR}:211] Application timeout caused pair closure",
        # torch 2.13
        "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no "
        "error",
        "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 5000 ms",
        "RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while "
        "waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.",
        "torch.distributed.DistNetworkError: Connection reset by peer",
        "torch.distributed.DistStoreError: wait timeout after 10000ms, keys: /step",
        # torch 1.x
        "RuntimeError: Connection reset by peer",
        # torch 1.5
        "RuntimeError: Broken pipe",
        # torch 2.13
        "RuntimeError: Socket Timeout",
        "RuntimeError: Stop_waiting response is expected",
        "RuntimeError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote "
        "server shutdown or crash?",
        "RuntimeError: Failed to send, sent 0 bytes. Connection was likely closed. Did the remote "
        "server shutdown or crash?",
        # torch 2.x
        "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving "
        "ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got "
        "error: Connection reset by peer",
        "torch.distributed.DistBackendError: [4] is setting up NCCL communicator and retrieving "
        "ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got "
        "error: Socket Timeout",
        "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 2.",
        # NCCL 2.21.5
        f"{_NCCL_ERROR}/c10d/NCCLUtils.hpp:268, network error, NCCL version 2.21.5\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process "
        "exiting prematurely.\nLast error:\n"
        "socketProgressOpt: Call to recv failed : Connection reset by peer",
        # NCCL 2.14.3
        f"{_NCCL_ERROR}/c10d/ProcessGroupNCCL.cpp:1275, internal error, NCCL version 2.14.3\n"
        "ncclInternalError: Internal check failed.\nLast error:\n"
        "Net : Connection closed by remote peer, remote process exited",
        # torch 2.x
        "[PG 1 Rank 6] Process group watchdog thread terminated with exception: [Rank 6] ...",
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=880, "
        "OpType=BROADCAST, Timeout(ms)=1800000) ran for 1800778 milliseconds before timing out.",
        # tensorpipe of torch 1.9
        "RuntimeError: eof (this error originated at tensorpipe/transport/shm/"
        "connection_impl.cc:259)",
        # tensorpipe of torch 1.x
        "RuntimeError: ECONNRESET: connection reset by peer (this error originated at "
        "tensorpipe/transport/uv/connection_impl.cc:132)",
    ),
    OWN_CAUSE: (
        # torch 2.x
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        # torch 2.13
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        # NCCL 2.21.5
        f"{_NCCL_ERROR}/c10d/NCCLUtils.hpp:268, unhandled cuda error, NCCL version 2.21.5\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
        "Cuda failure 'out of memory'",
        f"{_NCCL_ERROR}/c10d/NCCLUtils.hpp:268, invalid usage, NCCL version 2.21.5\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
        # torch 2.13
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
        "network address. port: 29500, useIpv6: false",
        "torch.distributed.DistNetworkError: port: 29500, code: -98, name: EADDRINUSE",
        # glibc any
        "torch.distributed.DistNetworkError: message: Address already in use",
    ),
    BROKEN_CONNECTION: (
        # Python 3
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        # asyncio of Python 3
        "ConnectionResetError: Connection lost",
        # Python 3
        "ConnectionAbortedError: [Errno 103] Software caused connection abort",
        "BrokenPipeError: [Errno 32] Broken pipe",
        # multiprocessing of Python 3
        "EOFError",
    ),
    WATCHDOG_FRAME: (
        # torch 2.x
        "frame #1: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout() + 0x2b4 (0x7f5a in "
        "libtorch_cuda.so)",
        "Exception raised from checkTimeout at ProcessGroupNCCL.cpp:632 (most recent call first):",
    ),
    CUDA_FRAME: (
        # torch 2.x
        "frame #3: c10::cuda::c10_cuda_check_implementation(int, char const*) + 0x118 (0x7f5a in "
        "libc10_cuda.so)",
    ),
}
"""For each pattern of each table, in its order, an error of the library that writes the text: its
headline, and further lines if one of them has the text. Addresses and numbers are others. The texts
of torch 2.13 (CPU) were printed in our runs or are in its shared libraries. The others are from the
issues of pytorch and nccl; the version is as exact as the issue."""


def traceback(headline: str, *, rank: int | None = None, then: str = "") -> str:
    """Return what Python prints for an uncaught error; with `rank`, as torch's hook prints it."""
    lines = [
        "Traceback (most recent call last):",
        '  File "/src/train.py", line 32, in <module>',
        "    train()",
        '  File "/src/train.py", line 17, in train',
        "    dist.all_reduce(gradients)",
        "    ^^^^^^^^^^^^^^^^^^^^^^^^^^",
        *headline.splitlines(),
    ]
    prefix = "" if rank is None else f"[rank{rank}]: "
    return "".join(f"{prefix}{line}\n" for line in lines) + then


def cause_of(first: str, last: str, *, how: str) -> str:
    """Return what Python prints for an error that another one led to."""
    phrases = {
        "from": "The above exception was the direct cause of the following exception:",
        "during": "During handling of the above exception, another exception occurred:",
    }
    return f"{traceback(first)}\n{phrases[how]}\n\n{traceback(last)}"


def ended(
    text: str = "", exit_code: int | None = 1, *, signal: int | None = None, **facts: object
) -> WorkerExit:
    """Return the exit of a worker that left `text` on its standard error."""
    code = None if signal is not None else exit_code
    return WorkerExit(0, 4_000, code, signal, stderr_tail=text, **facts)  # type: ignore[arg-type]


OF_A_PEER = [
    f"RuntimeError: {GLOO}/pair.cc:537] Read error [127.0.0.1]:27022: Connection reset by peer. "
    f"This is typically caused by a remote worker hanging or bugs in the application. {HINT}",
    f"RuntimeError: {GLOO}/pair.cc:553] Connection closed by peer [127.0.0.1]:58604. "
    f"This is typically caused by a remote worker crashing. {HINT}",
    "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 5000 ms\n"
    f" Original exception: \n{GLOO}/unbound_buffer.cc:78] Timed out waiting 4998ms for recv",
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer "
    "[18.25.6.30]:28048",
    f"RuntimeError: Gloo connectFullMesh failed with {GLOO}/pair.cc:144] no error",
    "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely "
    "closed. Did the remote server shutdown or crash?",
    "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
    "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while "
    "trying to connect to (node0, 29500).",
    "torch.distributed.DistStoreError: Timed out after 11 seconds waiting for clients. 1/2 clients "
    "joined.",
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/"
    "NCCLUtils.hpp:268, remote process exited or there was a network error, NCCL version 2.21.5\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
    "prematurely.\nLast error:\nsocketProgressOpt: Call to recv failed : Connection reset by peer",
]

OF_ITS_OWN = [
    "ValueError: loss is nan",
    "RuntimeError: the connection to the data server was reset by a peer of ours",
    "ValueError: table 'Connection reset by peer' is corrupt",
    "RuntimeError: Broken pipe in the preprocessing pipeline",
    "EOFError: Ran out of input",
    "ConnectionRefusedError: [Errno 111] Connection refused",
    "ConnectionResetError: Caught ConnectionResetError in DataLoader worker process 0.",
    "requests.exceptions.ConnectionError: ('Connection aborted.', RemoteDisconnected('gone'))",
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
    "network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE",
    f"RuntimeError: {GLOO}/device.cc:84] ifa != nullptr. Unable to find address for: eth7",
    f"RuntimeError: {GLOO}/pair.cc:446] op.preamble.length <= op.nbytes. 16 vs 8",
    "KeyError: 'DistNetworkError'",
]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [pair for table, texts in EXAMPLES.items() for pair in zip(table, texts, strict=True)],
)
def test_pattern_finds_its_example(pattern: str, text: str) -> None:
    """Each row of the tables finds the text that its library prints."""
    assert re.search(pattern, text, re.MULTILINE)


@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize(
    "headline",
    [*OF_A_PEER, *EXAMPLES[LOST_PEER], *EXAMPLES[BROKEN_CONNECTION]],
)
def test_error_that_a_peer_has_caused(headline: str, rank: int | None) -> None:
    """The text of a lost peer makes a victim, printed or recorded, whatever ended the worker."""
    assert VICTIM is classify(ended(traceback(headline, rank=rank)))
    assert VICTIM is classify(ended(exit_code=1, error=ErrorRecord(headline)))
    assert VICTIM is classify(ended(error=ErrorRecord(headline, traceback(headline))))
    assert VICTIM is classify(ended(traceback(headline), signal=6))


@pytest.mark.parametrize("headline", [*OF_ITS_OWN, *EXAMPLES[OWN_CAUSE]])
def test_error_of_its_own(headline: str) -> None:
    """Any other error is a cause, also one that speaks of connections and peers."""
    assert PRIMARY is classify(ended(traceback(headline)))
    assert PRIMARY is classify(ended(traceback(headline, rank=0)))
    assert PRIMARY is classify(ended(error=ErrorRecord(headline, traceback(headline))))


@pytest.mark.parametrize("text", EXAMPLES[OWN_CAUSE])
def test_own_cause_outranks_a_lost_peer(text: str) -> None:
    """An error with both texts is a cause."""
    headline = f"torch.distributed.DistNetworkError: {text}"

    assert PRIMARY is classify(ended(traceback(headline.replace("\n", " "))))


@pytest.mark.parametrize("text", EXAMPLES[BROKEN_CONNECTION])
def test_broken_connection_with_more_words_is_a_cause(text: str) -> None:
    """Only the bare error counts: more words come from code that names the connection."""
    assert PRIMARY is classify(ended(traceback(f"{text.partition(':')[0]}: bad reply")))


@pytest.mark.parametrize("text", EXAMPLES[WATCHDOG_FRAME])
def test_stack_of_the_watchdog(text: str) -> None:
    """A stack below the watchdog makes a victim, unless a CUDA call failed."""
    assert VICTIM is classify(ended(text, signal=6))
    for cuda in EXAMPLES[CUDA_FRAME]:
        assert PRIMARY is classify(ended(f"{text}\n{cuda}", signal=6))


RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"
NETWORK = "torch.distributed.DistNetworkError: Connection reset by peer"
NAN = "ValueError: loss is nan"
STORE_NOISE = (
    "[rank1]:[W1121 11:25:21.601 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=80): "
    "Failed to recv, got 0 bytes. Connection was likely closed.\n"
)
NOISE = f"Exception in thread Thread-2 (_pin_memory_loop):\n{traceback(RESET)}"


@pytest.mark.parametrize(
    ("claim", "text", "expected"),
    [
        (
            "a wrapped error of a peer",
            cause_of(NETWORK, "RuntimeError: failed", how="from"),
            VICTIM,
        ),
        ("a handler that failed too", cause_of(NETWORK, "KeyError: 'x'", how="during"), VICTIM),
        ("a cleanup that met the end", cause_of(NAN, NETWORK, how="during"), PRIMARY),
        ("a cleanup that met a reset", cause_of(NAN, RESET, how="during"), PRIMARY),
        (
            "a reset by any process",
            cause_of(RESET, "urllib3.ProtocolError: x", how="during"),
            PRIMARY,
        ),
        ("a reset, then the network", cause_of(RESET, NETWORK, how="during"), VICTIM),
        ("threads that end after it", traceback(NAN, then=NOISE), PRIMARY),
        (
            "a child's error before it",
            f"Process Loader-1:\n{traceback(RESET)}{traceback(NAN)}",
            PRIMARY,
        ),
        ("a store that ends after it", traceback(NAN, then=STORE_NOISE), PRIMARY),
        (
            "the same of torch's kind",
            traceback("RuntimeError: x", rank=1, then=STORE_NOISE),
            PRIMARY,
        ),
        ("words before it", "Process group is up\n" + traceback(NAN), PRIMARY),
        (
            "a thread whose handler failed",
            traceback(NAN) + "Exception in thread T-1:\n" + cause_of(RESET, NETWORK, how="during"),
            PRIMARY,
        ),
        ("nothing but a thread", NOISE, UNKNOWN),
        ("an earlier error", traceback(RESET) + "retrying\n" + traceback(NAN), PRIMARY),
        ("its own, then the network", traceback(NAN) + traceback(NETWORK), VICTIM),
        ("a reset that was survived", traceback(RESET) + "step done\n" * 30, UNKNOWN),
        ("lines after it", traceback(RESET) + "wandb: synced\n" * 5, VICTIM),
        ("a head that was cut", traceback(NETWORK).partition("\n")[2], VICTIM),
        ("a cut stack", "frame #8: c10d::get (lib.so)\n\n" + traceback(NETWORK, rank=1), VICTIM),
        ("words of it", "the peer: Connection reset by peer\n", UNKNOWN),
        ("nothing", "", UNKNOWN),
    ],
)
def test_what_counts_of_a_text(claim: str, text: str, expected: Symptom) -> None:
    """Only the error that ended the worker counts, from its first cause on."""
    assert expected is classify(ended(text)), claim


FATAL = "Fatal Python error: Segmentation fault"
ASSERTION = "a.out: a.c:3: main: Assertion `n > 0' failed."
ABORT = "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  "
WATCHDOG = (
    f"{ABORT}[PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated "
)


def frames(name: str) -> str:
    """Return a stack as c10 prints it; it can fill the tail of standard error."""
    return f"frame #1: c10d::ProcessGroupNCCL::{name} + 0x2b4 (0x7f5a in libtorch_cuda.so)\n" * 9


@pytest.mark.parametrize(
    ("claim", "exit", "expected"),
    [
        ("killed", ended(signal=9), PRIMARY),
        ("crashed", ended(signal=11), PRIMARY),
        ("bus error", ended(signal=7), PRIMARY),
        ("killed below a shell", ended("", 137), PRIMARY),
        (
            "killed by the OOM killer",
            ended(traceback(RESET), signal=9, oom_killed=True),
            PRIMARY,
        ),
        ("crashed in the teardown of a victim", ended(traceback(NETWORK), signal=11), VICTIM),
        ("aborted without output", ended(signal=6), UNKNOWN),
        ("aborted with a text", ended("free(): invalid pointer\n", signal=6), PRIMARY),
        (
            "watchdog, timeout",
            ended(
                WATCHDOG + "with exception: [Rank 3] Watchdog caught collective operation timeout: "
                "WorkNCCL(SeqNum=4, OpType=BROADCAST) ran for 1800011 milliseconds\n"
                + frames("watchdogHandler()"),
                signal=6,
            ),
            VICTIM,
        ),
        (
            "watchdog, its text cut off",
            ended(frames("WorkNCCL::checkTimeout()"), signal=6),
            VICTIM,
        ),
        (
            "watchdog, a CUDA error",
            ended(
                WATCHDOG
                + "with exception: CUDA error: an illegal memory access was encountered\n"
                + frames("WorkNCCL::checkTimeout()"),
                signal=6,
            ),
            PRIMARY,
        ),
        (
            "uncaught in C++",
            ended(
                "terminate called after throwing an instance of 'gloo::IoException'\n"
                f"  what():  {GLOO}/pair.cc:537] Read error [::1]:2: Connection reset by peer\n",
                signal=6,
            ),
            VICTIM,
        ),
        ("a pipe without a reader", ended(signal=13), VICTIM),
        ("ended by a SIGTERM", ended(signal=15), UNKNOWN),
        ("the same below a shell", ended("", 143), UNKNOWN),
        ("a chosen exit code", ended("", 17), UNKNOWN),
        ("a code that is no signal", ended("", 255), UNKNOWN),
        ("recorded, then stopped", ended(signal=15, error=ErrorRecord(NAN)), PRIMARY),
        ("a victim, then stopped", ended(signal=15, error=ErrorRecord(NETWORK)), VICTIM),
    ],
)
def test_what_counts_of_an_exit(claim: str, exit: WorkerExit, expected: Symptom) -> None:
    """A fatal signal is the worker's own cause unless its last output shows otherwise."""
    assert expected is classify(exit), claim


RECEIVING = (
    f"RuntimeError: {GLOO}/unbound_buffer.cc:78] Timed out waiting 2000ms for recv operation"
)
SENDING = f"RuntimeError: {GLOO}/unbound_buffer.cc:129] Timed out waiting 2000ms for send operation"
CAUGHT = (
    "with exception: [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, "
    "OpType=BROADCAST) ran for 1800011 milliseconds before timing out.\n"
)


@pytest.mark.parametrize(
    ("exit", "expected"),
    [
        (ended(traceback(f"{RECEIVING} to complete", rank=0)), True),
        (ended(traceback(f"{SENDING} to complete", rank=3, then=NOISE)), True),
        (ended(error=ErrorRecord(f"{SENDING} to complete")), True),
        (ended(error=ErrorRecord("it failed", traceback(f"{SENDING} to complete"))), True),
        (ended(traceback(OF_A_PEER[2])), True),
        (ended(traceback(EXAMPLES[LOST_PEER][6])), True),
        (ended(traceback(EXAMPLES[LOST_PEER][9])), True),
        (ended(WATCHDOG + CAUGHT + frames("watchdogHandler()"), signal=6), True),
        (ended(frames("WorkNCCL::checkTimeout()"), signal=6), True),
        (ended(traceback(EXAMPLES[LOST_PEER][19])), True),
        (ended(cause_of(f"{RECEIVING} to complete", RESET, how="during")), True),
        # A peer is gone, or none ever came.
        (ended(traceback(OF_A_PEER[0])), False),
        (ended(traceback(OF_A_PEER[1])), False),
        (ended(traceback(EXAMPLES[LOST_PEER][18])), False),
        (ended(traceback("torch.distributed.DistStoreError: wait timeout after 10000ms")), False),
        (ended(traceback("RuntimeError: Socket Timeout")), False),
        (ended(signal=13), False),
        # The worker has its own cause.
        (ended(traceback("TimeoutError: [Errno 110] Connection timed out")), False),
        (ended(cause_of(NAN, f"{RECEIVING} to complete", how="during")), False),
        (ended(traceback(f"{RECEIVING} to complete"), signal=9, oom_killed=True), False),
        (ended(signal=6), False),
        (ended(), False),
    ],
)
def test_rank_that_did_not_come_to_a_collective(exit: WorkerExit, expected: bool) -> None:
    """Only such a victim shows that a rank is late, and perhaps still there."""
    assert expected is is_collective_timeout(exit)


@pytest.mark.parametrize(
    ("exit", "expected"),
    [
        (ended(traceback(NAN, rank=3, then=NOISE)), NAN),
        (ended("loss is nan\n\n"), ""),
        (ended("step 3\nFatal Python error: Segmentation fault\n\n", signal=11), FATAL),
        (ended("a.out: a.c:3: main: Assertion `n > 0' failed.\n", signal=6), ASSERTION),
        (ended("free(): invalid pointer\n", signal=6), "free(): invalid pointer"),
        (ended("step 3\n", signal=9), ""),
        (ended(f"{ABORT}it broke\n{frames('f()')}", signal=6), "it broke"),
        (ended("noise\n", error=ErrorRecord("first\nlast\n")), "last"),
        (ended(""), ""),
    ],
)
def test_line_with_the_error(exit: WorkerExit, expected: str) -> None:
    """The headline of the last error counts, whatever follows it; else what announces an end."""
    assert expected == find_error(exit)


@pytest.mark.parametrize("signal", [9, 15, 6, None])
@pytest.mark.parametrize(
    "noise",
    [
        "/srv/train.py:4: FutureWarning: x is deprecated\n  warnings.warn('x', FutureWarning)\n",
        "/srv/loader.py:9: UserWarning: few cores\n  super().__init__(loader)\n",
        "Loading weights: 100%|██████████| 41/41 [00:01<00:00, 38.11it/s]\n",
        "12it [00:03,  3.98it/s]\n",
        "2026-11-26 01:18:21,180 | INFO | root | Namespace(size=64)\n",
        "WARNING:root:few cores\n",
        "[rank1]:[W1126 01:18:21.180 ProcessGroup.cpp:1] few cores\n",
        "gpu-7:471:471 [0] NCCL INFO Bootstrap: Using eth0\n",
    ],
)
def test_noise_is_no_cause(noise: str, signal: int | None) -> None:
    """Warnings, bars and log lines tell nothing of the end, whatever ended the worker."""
    code = 3 if signal is None else None
    exit = ended(noise, code, signal=signal)

    assert ("", "") == (find_error(exit), find_last_words(exit))


def test_last_output_below_noise() -> None:
    """After an exit code the last line that is no noise is kept; after a signal nothing is."""
    text = "no data in /srv\nWARNING:root:few cores\n 0%|   | 0/41 [00:00<?, ?it/s]\n"

    assert "no data in /srv" == find_last_words(ended(text, 3))
    assert "" == find_last_words(ended(text, signal=9))
    assert "INFORMATION is missing" == find_last_words(ended("INFORMATION is missing\n", 3))


def test_stack_has_no_ranks_and_no_noise() -> None:
    """The last error with its stack is the same text on every rank."""
    first = find_stack(ended("step 3\n" + traceback(NAN, rank=0) + "bye\n"))

    assert first == find_stack(ended(traceback(NAN, rank=511))) == traceback(NAN).rstrip()
    assert find_stack(ended("no stack\n")) == ""


@pytest.mark.parametrize("line", ["\n", " \n", "a\n"])
def test_causes_at_both_ends_of_many_lines(line: str) -> None:
    """Of more lines than are read, those at the begin and at the end count."""
    many = line * (16_384 // len(line))
    own, lost = traceback("ValueError: loss is nan"), traceback(OF_A_PEER[0])
    with_own = WorkerExit(0, 1, 1, None, error=ErrorRecord("m", many + own))
    with_lost = WorkerExit(0, 1, 1, None, error=ErrorRecord("m", lost + "\n" * 16_384))

    assert (PRIMARY, VICTIM) == (classify(with_own), classify(with_lost))
    assert find_stack(with_own) == own.strip()


def test_lines_that_are_read_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text has as many lines as characters, so its lines are counted; it is read once."""
    read: list[int] = []

    def find(lines: Sequence[str]) -> list[PrintedError]:
        read.append(len(lines))
        return find_last_chain(lines)

    monkeypatch.setattr(symptoms, "find_last_chain", find)
    exit = WorkerExit(0, 1, 1, None, error=ErrorRecord("m", "\n" * 16_384))
    classify(exit), find_error(exit), find_stack(exit)

    assert [LINES_MAX] == read
