"""Functions that run as workers."""

from __future__ import annotations

import builtins
import ctypes
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any


class LockedError(Exception):
    """Holds what cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def tell(word: str, *numbers: int) -> dict[str, Any]:
    return {
        "word": word,
        "sum": sum(numbers),
        "rank": os.environ.get("RANK"),
        "environment": sorted(os.environ.keys() - {"LC_CTYPE"}),  # Python's own, in a C locale
        "argv": sys.argv,
        "folder": os.getcwd(),
        "group": os.getpgid(0) == os.getsid(0) == os.getpid(),
        "random": random.random(),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "int": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "term": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "cpus": sorted(os.sched_getaffinity(0)),
    }


def fail(text: str) -> None:
    raise ValueError(text)


def fail_with_lock() -> None:
    raise LockedError("locked")


def fail_silently() -> None:
    raise SilentError


def leave(code: Any) -> None:
    sys.exit(code)


def drop_out(code: int) -> None:
    os._exit(code)


def die(signum: int) -> None:
    os.kill(os.getpid(), signum)
    signal.pause()


def return_lock() -> Any:
    return threading.Lock()


def fill(size: int) -> bytes:
    return b"x" * size


def fill_beyond_limit(size: int) -> bytes:
    """Return more than the process may write to a file, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))
    return fill(size)


def measure(data: bytes) -> int:
    return len(data)


def talk() -> None:
    print("out", flush=False)
    print("err", file=sys.stderr, flush=False)
    print(sys.stdin.readline().strip(), flush=False)
    os._exit(0)


def touch_at_exit(path: str) -> None:
    import atexit

    atexit.register(Path(path).touch)


class Trap:
    """Aborts the process when the interpreter takes it apart, as threads of torch may."""

    def __del__(self) -> None:
        os.abort()


def leave_things(folder: str) -> str:
    """Leave what only the end of the process can look after."""
    builtins.left_trap = Trap()  # type: ignore[attr-defined]
    left: Any = [open(Path(folder, "text"), "w"), open(Path(folder, "bytes"), "wb")]
    left.append(left)  # only a collection of garbage would close them
    left[0].write("text")
    left[1].write(b"bytes")
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(libc.fopen(str(Path(folder, "c")).encode(), b"w"))
    libc.fputs(b"c", file)

    def finish() -> None:
        time.sleep(0.1)
        Path(folder, "thread").write_text("thread")

    threading.Thread(target=finish).start()
    threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
    return "left"


def leave_full_pipe() -> str:
    """Leave a file open that cannot be written, and a thread that tries to."""
    _, write_fd = os.pipe()
    file = open(write_fd, "wb")
    threading.Thread(target=file.write, args=(bytes(1 << 20),), daemon=True).start()
    return "left"


def read(fd: int) -> str:
    return os.read(fd, 100).decode()


def list_descriptors() -> set[str]:
    """Return what the open descriptors refer to."""
    paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return {os.readlink(path) for path in paths if os.path.lexists(path)}


def list_ports() -> list[int]:
    """Return the ports of the sockets that are open in this process."""
    ports = []
    for name in os.listdir("/proc/self/fd"):
        if not os.path.realpath(f"/proc/self/fd/{name}").rpartition("/")[2].startswith("socket:"):
            continue  # a socket of something else could not be made, nor its descriptor closed
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as copy:
            if copy.family in (socket.AF_INET, socket.AF_INET6):
                ports.append(copy.getsockname()[1])
    return ports


def sum_in_pool(numbers: list[int]) -> int:
    """Use `multiprocessing` in the worker."""
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(2) as pool:
        return sum(pool.map(abs, numbers))
