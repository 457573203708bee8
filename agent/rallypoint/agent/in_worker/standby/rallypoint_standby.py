"""The end of a standby's socket: imports modules, waits, and becomes a worker.

See sitecustomize.py for when it is imported, and for the frames on the socket.
Standard library only, and Python 3.8 or newer. The agent never imports this file.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing would take a millisecond of every start
if TYPE_CHECKING:
    from typing import Any

    Stamp = tuple[int, int, int] | None


MAX_FRAME_BYTES = 16 * 1024 * 1024
KEPT_BYTES = 64 * 1024
"""How much output of the imports is kept, for each of stdout and stderr."""
PIPE_BYTES = 1024 * 1024
"""Room for output of the imports in a pipe; an import that prints more never ends."""
LOOK_S = 60.0
"""How often a standby looks whether a file that it has imported was changed."""
LAST_LOOK_S = 0.02
"""How long it looks once more before it runs; the user's own files come first."""
HARMLESS_DEVICES = frozenset(
    "/dev/" + name for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx")
)
OF_ROUND = frozenset(
    (
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT"),
    )
)
PREFIXES_OF_ROUND = ("TORCHELASTIC_", "RALLYPOINT_")
"""Variables that a standby does not have yet."""
F_SETPIPE_SZ = 1031  # fcntl has it since Python 3.10


class Standby:
    """The interpreter that waits."""

    def __init__(self, fd: int) -> None:
        """Take the socket to the agent."""
        import _socket

        os.set_inheritable(fd, False)
        self._socket = _socket.socket(fileno=fd)
        self._fds: list[int] = []
        self._kept: list[tuple[int, int, bool]] = []
        self._stamps: list[tuple[str, Stamp]] = []
        self._priority: tuple[int, os.sched_param] | None = None

    def wait(self) -> None:
        """Import what the agent asks for, then return when this process is a worker."""
        self._send(type="hello", python=".".join(map(str, sys.version_info[:3])))
        prepare = self._receive()
        self._keep_output()
        self._yield_processors()
        self._prepare(prepare["modules"], prepare["calls"], prepare["path"])
        run = self._receive()
        changed = self._find_changed(LAST_LOOK_S)
        if changed:
            self._end_stale(changed)
        self._become_worker(run["environ"], run["argv"])

    # --- imports ---

    def _prepare(self, modules: list[str], calls: list[str], path: str | None) -> None:
        import time

        opened = set(_list_open())
        began_ns = time.monotonic_ns()
        reads = _Reads()
        if path is not None:
            sys.path.insert(0, path)
        failed: list[dict[str, str]] = []
        for name, act in [(name, _import) for name in modules] + [(call, _call) for call in calls]:
            try:
                act(name)
            except BaseException as error:  # noqa: BLE001 - a module may call sys.exit
                failed.append({"name": name, "error": f"{type(error).__name__}: {error}"})
        if path is not None and path in sys.path:
            sys.path.remove(path)
        self._stamps = _stamp_modules()
        refusal = _find_refusal(opened) or reads.end()
        self._want_processors()  # who waits costs nothing, and answers at once
        self._send(
            type="ready",
            failed=failed,
            took_ms=(time.monotonic_ns() - began_ns) // 1_000_000,
            refusal=refusal,
        )

    def _find_changed(self, limit_s: float | None = None) -> str:
        """Return a file that has changed since it was imported, or ""."""
        import time

        began_s = time.monotonic()
        for path, stamp in self._stamps:
            if _stamp(path) != stamp:
                return path
            if limit_s is not None and time.monotonic() - began_s > limit_s:
                break  # the rest was looked at within LOOK_S
        return ""

    def _end_stale(self, path: str) -> None:
        self._send(type="stale", why=f"{path} has changed")
        os._exit(0)

    # --- output ---

    def _keep_output(self) -> None:
        """Let the output of the imports wait in its pipe, or its file, for the worker's."""
        import fcntl
        import stat

        for fd in (1, 2):
            mode = os.fstat(fd).st_mode
            if stat.S_ISFIFO(mode):
                reader = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
                try:
                    fcntl.fcntl(reader, F_SETPIPE_SZ, PIPE_BYTES)
                except OSError:  # this user's pipes have no more room
                    pass
                self._kept.append((fd, reader, False))
            elif stat.S_ISREG(mode):
                self._kept.append((fd, os.dup(fd), True))

    def _take_output(self) -> dict[int, bytes]:
        """Return what the imports have written to stdout and stderr."""
        kept: dict[int, bytes] = {}
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        for fd, reader, is_file in self._kept:
            try:
                kept[fd] = os.pread(reader, KEPT_BYTES, 0) if is_file else _read(reader)
            except BlockingIOError:
                kept[fd] = b""
            os.close(reader)
        return kept

    # --- priority ---

    def _yield_processors(self) -> None:
        """Run only when no other process wants a processor, if this can be taken back."""
        policy = os.sched_getscheduler(0)
        if policy not in (os.SCHED_OTHER, os.SCHED_BATCH):
            return
        parameters = os.sched_getparam(0)
        self._priority = policy, parameters
        can_return = _can_return(policy, parameters)
        os.sched_setscheduler(0, os.SCHED_IDLE if can_return else os.SCHED_BATCH, parameters)

    def _want_processors(self) -> None:
        if self._priority is None:
            return
        policy, parameters = self._priority
        # Every thread has a priority, those of libraries too.
        for task in os.listdir("/proc/self/task"):
            try:
                os.sched_setscheduler(int(task), policy, parameters)
            except ProcessLookupError:  # a thread of a library that has just ended
                pass

    # --- the end of the wait ---

    def _become_worker(self, environ: dict[str, str], argv: list[str]) -> None:
        kept = self._take_output()
        for target, fd in enumerate(self._fds[:3]):
            os.dup2(fd, target, inheritable=True)
        for fd in self._fds:
            os.close(fd)
        _set_environment(environ)
        sys.argv[1:] = [_decode(text) for text in argv]
        self._send(type="running")
        self._socket.close()
        for fd, data in kept.items():
            while data:
                data = data[os.write(fd, data) :]

    # --- the socket ---

    def _send(self, **message: Any) -> None:
        import json

        body = json.dumps(message, ensure_ascii=True).encode("ascii")
        try:
            self._socket.sendall(len(body).to_bytes(4, "big") + body)
        except OSError:  # the agent does not want this standby any more
            os._exit(0)

    def _receive(self) -> Any:
        """Return the next message; ends this process when the agent hangs up."""
        import json

        size = int.from_bytes(self._receive_bytes(4), "big")
        if size > MAX_FRAME_BYTES:
            os._exit(1)
        return json.loads(self._receive_bytes(size).decode("ascii"))

    def _receive_bytes(self, count: int) -> bytes:
        import _socket
        import array

        data = b""
        while len(data) < count:
            self._socket.settimeout(LOOK_S)
            try:
                part, ancillary, _, _ = self._socket.recvmsg(
                    min(count - len(data), 65536), _socket.CMSG_SPACE(16 * 4)
                )
            except _socket.timeout:
                changed = self._find_changed()
                if changed:
                    self._end_stale(changed)
                continue
            except OSError:
                part = b""
            if not part:
                os._exit(0)
            for _, _, payload in ancillary:
                self._fds.extend(array.array("i", payload))
            data += part
        return data


class _Reads:
    """Which variables of a round are asked for during the imports: none of them is set yet.

    A module that keeps what it has read would keep the wrong value in every worker.
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
                    if key in OF_ROUND or key.startswith(PREFIXES_OF_ROUND):
                        noted.append(key)
                    raise
                return value

        self._noted, self._kind = noted, kind
        environ: Any = os.environ
        environ.__class__ = Noting

    def end(self) -> str:
        """Stop; return why this standby must not be used, or ""."""
        environ: Any = os.environ
        environ.__class__ = self._kind
        return f"an import has read {self._noted[0]}" if self._noted else ""


def _import(name: str) -> None:
    __import__(name)


def _call(name: str) -> None:
    module, _, path = name.partition(":")
    __import__(module)
    function: Any = sys.modules[module]
    for part in path.split("."):
        function = getattr(function, part)
    function()


def _list_open() -> list[tuple[str, str]]:
    """Return the descriptors of this process, each with what it is."""
    opened = []
    for name in os.listdir("/proc/self/fd"):
        try:
            opened.append((name, os.readlink("/proc/self/fd/" + name)))
        except OSError:  # the descriptor of the listing itself
            pass
    return opened


def _find_refusal(opened_before: set[tuple[str, str]]) -> str:
    """Return why what was imported must not wait in a standby, or ""."""
    import _thread

    for _, target in sorted(set(_list_open()) - opened_before):
        if target.startswith("socket:"):
            return "an import has opened a socket"
        if target.startswith("/dev/") and target not in HARMLESS_DEVICES:
            if not target.startswith(("/dev/shm/", "/dev/pts/")):
                return "an import has opened " + target
    if _thread._count():
        return "an import has started a thread"
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_initialized():
            return "an import has made a CUDA context"
    except Exception as error:  # noqa: BLE001 - a torch that cannot tell must not wait either
        return f"torch.cuda.is_initialized: {error}"
    return ""


def _stamp_modules() -> list[tuple[str, Stamp]]:
    """Return the files of all modules, the user's own first, each with its stamp."""
    installed = tuple({os.path.join(path, "") for path in (sys.prefix, sys.base_prefix)})
    paths: set[str] = set()
    for module in list(sys.modules.values()):
        try:
            spec = vars(module).get("__spec__")
            if spec is not None and spec.has_location and spec.origin:
                paths.add(os.path.abspath(spec.origin))
        except Exception:  # noqa: BLE001 - an object that only pretends to be a module
            continue
    ordered = sorted(paths, key=lambda path: (path.startswith(installed), path))
    return [(path, _stamp(path)) for path in ordered]


def _stamp(path: str) -> Stamp:
    try:
        status = os.stat(path)
    except OSError:  # in a zip archive, or removed
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _can_return(policy: int, parameters: os.sched_param) -> bool:
    """Return whether a process of this user may leave SCHED_IDLE: one of them tries.

    The kernel asks for CAP_SYS_NICE outside of any user namespace, or RLIMIT_NICE.
    """
    child = os.fork()
    if child == 0:
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, parameters)
            os.sched_setscheduler(0, policy, parameters)
        except OSError:
            os._exit(1)
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def _read(fd: int) -> bytes:
    data = b""
    while len(data) < KEPT_BYTES:
        try:
            part = os.read(fd, KEPT_BYTES - len(data))
        except BlockingIOError:
            break
        if not part:
            break
        data += part
    return data


def _decode(text: str) -> str:
    """Return text of the agent in this interpreter's encoding."""
    return os.fsdecode(text.encode("utf-8", "surrogateescape"))


def _set_environment(environ: dict[str, str]) -> None:
    """Replace the whole environment; what stays as it is keeps its place."""
    wanted = {
        name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
        for name, value in environ.items()
    }
    for name in list(os.environb):
        if name not in wanted:
            del os.environb[name]
    for name, value in wanted.items():
        if os.environb.get(name) != value:
            os.environb[name] = value
