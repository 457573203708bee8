"""What the imports of a forkserver must not do, and which files they have read.

See sitecustomize.py. The agent takes `is_of_round`.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    File = tuple[int, int, int] | None
    Stamp = tuple[int, int, int] | None

HARMLESS_DEVICES = frozenset(
    "/dev/" + name for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx")
)
SHARED = {"socket:": "a socket", "pipe:": "a pipe", "anon_inode:": "a descriptor of events"}
"""What all forks would use together."""
WATCHDOG_S = 0.05
"""How long the thread of a watchdog may take to end."""
NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""With it, `torch.cuda.is_available()` in an import does not initialize CUDA, which no fork could
use."""
_OF_ROUND = frozenset(
    (
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT", "TORCH_WORKER_SERVER_SOCKET"),
    )
)
_PREFIXES_OF_ROUND = ("TORCHELASTIC_", "RALLYPOINT_")


def is_of_round(name: str) -> bool:
    """Return whether an environment variable may have another value in each round."""
    return name in _OF_ROUND or name.startswith(_PREFIXES_OF_ROUND)


class Variables:
    """The environment during the imports, and which variables of a round they have asked for.

    None of these is set yet: a module that keeps what it has read would keep the wrong value in
    every worker.
    """

    def __init__(self) -> None:
        """Begin to note them."""
        noted: list[str] = []
        kind: Any = type(os.environ)

        class Noting(kind):  # type: ignore[misc]  # whatever class os.environ has
            def __getitem__(self, key: str) -> str:
                value: str
                try:
                    value = kind.__getitem__(self, key)
                except KeyError:
                    if is_of_round(key):
                        noted.append(key)
                    raise
                return value

        self._noted, self._kind, self._nvml = noted, kind, os.environ.get(NVML)
        os.environ[NVML] = "1"
        environ: Any = os.environ
        environ.__class__ = Noting

    def find_read(self) -> str:
        """Return what the latest import has done, or ""."""
        return f"has read {self._noted[0]}" if self._noted else ""

    def end(self) -> None:
        """Stop, and let workers have their own value of `NVML`, or none."""
        environ: Any = os.environ
        environ.__class__ = self._kind
        os.environ.pop(NVML, None)
        if self._nvml is not None:
            os.environ[NVML] = self._nvml


class Before:
    """What this process had before the imports."""

    def __init__(self) -> None:
        """Note it."""
        self._folder = _find_folder()
        self._opened = _list_open()
        self._streams = [_identify(fd) for fd in range(3)]

    def list_files(self) -> list[int]:
        """Return the descriptors of the files that were opened since, on disk or in memory."""
        fds = sorted(int(name) for name, _ in _list_open() - self._opened)
        return [fd for fd in fds if (file := _identify(fd)) and stat.S_ISREG(file[2])]

    def find_refusal(self) -> str:
        """Return why what was imported since must not be in a forkserver, or ""."""
        if _find_folder() != self._folder:  # the path of the script may be relative
            return "an import has changed the working directory"
        opened = self._find_opened()
        if opened:
            return opened
        memory = _find_shared_memory()
        if memory:
            return "an import has made memory that forks share: " + memory
        if any(signal.getitimer(timer)[0] for timer in range(3)):
            return "an import has set a timer"  # it would end the forkserver, and no fork has it
        if _has_children():
            return "an import has started a process"
        if _has_watchdog():  # a fork has no such thread, and would wait for it at its end
            return "an import has started the watchdog of faulthandler"
        hindrance = find_hindrance()
        return hindrance and "an import " + hindrance

    def _find_opened(self) -> str:
        for fd, stream in enumerate(self._streams):
            if _identify(fd) != stream:  # a worker gets its own there when it starts
                return "an import has redirected descriptor " + str(fd)
        for name, target in sorted(_list_open() - self._opened):
            file = _identify(int(name))
            if file is not None and file in self._streams[1:] and target != os.devnull:
                return "an import has copied the descriptor of its output"
            for prefix, what in SHARED.items():
                if target.startswith(prefix):
                    return "an import has opened " + what
            if target.startswith("/dev/") and target not in HARMLESS_DEVICES:
                if not target.startswith(("/dev/shm/", "/dev/pts/")):
                    return "an import has opened " + target
        return ""


def find_hindrance() -> str:
    """Return what the latest import has done that no fork survives, or "". Quick."""
    import _thread

    if _thread._count():
        return "has started a thread"
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_initialized():
            return "has made a CUDA context"
    except Exception as error:  # noqa: BLE001 - a torch that cannot tell must not be forked either
        return f"has left torch.cuda.is_initialized unable to answer: {error}"
    return ""


def _find_folder() -> str:
    """Return the working directory; "" if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _list_open() -> set[tuple[str, str]]:
    """Return the descriptors of this process, each with what it is."""
    opened = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            opened.add((name, os.readlink("/proc/self/fd/" + name)))
        except OSError:  # the descriptor of the listing itself
            pass
    return opened


def _identify(fd: int) -> File:
    """Return which file, and what kind of file, a descriptor is; None: it is closed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino, stat.S_IFMT(status.st_mode)


def _find_shared_memory() -> str:
    """Return the name of memory that is shared and writable, and in no file on a disk, or ""."""
    with open("/proc/self/maps", "rb") as file:
        for line in file:
            words = line.split(None, 5)
            name = os.fsdecode(words[5]).strip() if len(words) > 5 else ""
            if words[1].startswith(b"rw-s") and name.endswith("(deleted)"):
                return name
    return ""


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _has_watchdog() -> bool:
    """Return whether faulthandler.dump_traceback_later had a thread, which ends now."""
    faulthandler = sys.modules.get("faulthandler")
    threads = len(os.listdir("/proc/self/task"))
    if faulthandler is None or threads == 1:
        return False
    faulthandler.cancel_dump_traceback_later()
    end_s = time.monotonic() + WATCHDOG_S
    while time.monotonic() < end_s:
        if len(os.listdir("/proc/self/task")) < threads:
            return True
        time.sleep(0.001)
    return False


class Stamps:
    """Notes the stamps of source files before they are read.

    A later stamp would hide a change during the imports, which may take minutes.
    """

    def __init__(self) -> None:
        """Begin to note them. What site has imported was not noted before it was read."""
        noted = {path: stamp(path) for path in _list_files()}
        loader: Any = sys.modules["_frozen_importlib_external"].SourceFileLoader
        original = loader.path_stats

        def path_stats(self: Any, path: str) -> Any:
            noted[os.path.abspath(path)] = stamp(path)
            return original(self, path)

        self._noted, self._loader, self._original = noted, loader, original
        loader.path_stats = path_stats

    def end(self) -> tuple[list[tuple[str, Stamp]], list[tuple[str, Stamp]]]:
        """Stop; return the files of all modules with their stamps, and those not installed."""
        self._loader.path_stats = self._original
        installed = tuple({os.path.join(path, "") for path in (sys.prefix, sys.base_prefix)})
        noted = self._noted
        stamps = [(path, noted[path] if path in noted else stamp(path)) for path in _list_files()]
        return stamps, [one for one in stamps if not one[0].startswith(installed)]


def _list_files() -> list[str]:
    """Return the files of all modules, sorted."""
    paths: set[str] = set()
    for module in list(sys.modules.values()):
        try:
            spec = vars(module).get("__spec__")
            if spec is not None and spec.has_location and spec.origin:
                archive = getattr(spec.loader, "archive", None)  # a zip archive
                paths.add(os.path.abspath(archive or spec.origin))
        except Exception:  # noqa: BLE001 - an object that only pretends to be a module
            continue
    return sorted(paths)


def stamp(path: str) -> Stamp:
    """Return what differs once a file was changed."""
    try:
        status = os.stat(path)
    except OSError:  # removed
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
