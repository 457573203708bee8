"""The ends of the sockets in a forkserver: what it does with each frame, and when it ends."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rallypoint.agent.helper.descendants import PR_SET_CHILD_SUBREAPER, list_descendants, prctl
from rallypoint.agent.helper.frames import Decoder, encode
from rallypoint.agent.in_worker import PRELOAD
from rallypoint.agent.preload.command import FDS_ENV

LIMIT_S = 60.0
PROGRAM = ("-c", "print('main', flush=True)")
SHARING = """
import multiprocessing, noted, os, random, sys
print([random.random(), multiprocessing.current_process().authkey, noted.FILE.readline()])
"""
# A module of the user's that can pretend to be installed: sys.prefix is its own folder then.
MODULE = """
import ctypes, multiprocessing, os, random, resource, sys, warnings
FILE = open(__file__)
def install():
    sys.prefix = os.path.dirname(__file__)
def edit():
    os.utime(__file__, (1, 1))
def fill(free=0):
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    opened = []
    try:
        while True:
            opened.append(os.open("/dev/null", 0))
    except OSError:
        for fd in opened[:free]:
            os.close(fd)
def almost_fill():
    fill(1)
def part_ways():
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
def begin_native_thread():
    libc = ctypes.CDLL(None)
    libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.pause, None)
    warnings.simplefilter("always", DeprecationWarning)
    warnings.showwarning = lambda message, *_: os.write(1, str(message).encode())
def hang_in_forks():
    import signal, types
    cuda = types.SimpleNamespace(is_initialized=lambda: False, _is_in_bad_fork=signal.pause)
    sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
def fork_no_more():
    def fork():
        raise OSError(11, "no")
    os.fork = fork
"""


class Fork:
    """A worker that was asked for, and the helper's ends of its pipes."""

    def __init__(self, printed: Path, **fields: Any) -> None:
        self.report, report_fd = os.pipe()
        gate_fd, self.gate = os.pipe()
        frame = {"argv": [], "env": dict(os.environ), "cpus": [], "helper": os.getpid()}
        self.message = json.dumps({**frame, **fields}).encode()
        null, output = os.open(os.devnull, os.O_RDONLY), os.open(printed, os.O_WRONLY | os.O_APPEND)
        self.fds = [null, output, os.dup(output), report_fd, gate_fd]

    def close_theirs(self) -> None:
        """Close what was sent."""
        while self.fds:
            os.close(self.fds.pop())

    def begin(self) -> None:
        """Let it begin, and continue once it has."""
        os.write(self.gate, b"1")
        self.close_gate()

    def close_gate(self) -> None:
        """Let it continue."""
        os.close(self.gate)
        self.gate = os.open(os.devnull, os.O_WRONLY)

    def read_report(self) -> str:
        """Return what it reports once it has begun, or cannot."""
        assert select.select((self.report,), (), (), LIMIT_S)[0]
        with open(self.report, closefd=False) as file:
            return file.read()

    def close(self) -> None:
        self.close_theirs()
        os.close(self.report)
        os.close(self.gate)


class Hook:
    """A forkserver, with the ends of its sockets that agent and helper have."""

    def __init__(self, folder: Path, program: tuple[str, ...] = PROGRAM) -> None:
        self.program = program
        self.module = folder / "noted.py"
        self.module.write_text(MODULE)
        self.socket, theirs = socket.socketpair()
        self.helper, served = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for one in (self.socket, self.helper):
            one.settimeout(LIMIT_S)
        path = os.pathsep.join((PRELOAD, str(folder)))
        numbers = theirs.fileno(), served.fileno()
        environ = {**os.environ, "PYTHONPATH": path, FDS_ENV: ",".join(map(str, numbers))}
        self.printed = folder / "printed.txt"
        with theirs, served, self.printed.open("a+b") as output:
            self.process = subprocess.Popen(
                [sys.executable, *program],
                env=environ,
                pass_fds=numbers,
                stdout=output,
                start_new_session=True,
            )
        self.forks: list[Fork] = []
        self.pids: list[int] = []

    def send(self, **message: Any) -> None:
        self.socket.sendall(encode(message))

    def receive(self) -> dict[str, Any]:
        """Return the next message to the agent. One comes at a time."""
        decoder = Decoder()
        while data := self.socket.recv(65536):
            for message in decoder.feed(data):
                return message
        raise AssertionError("it has closed its socket")

    def ask(self, *calls: str, program: tuple[str, ...] | None = None) -> dict[str, Any]:
        """Let it import; return its answer."""
        self.begin_ask(*calls, program=program)
        return self.receive()

    def begin_ask(self, *calls: str, program: tuple[str, ...] | None = None) -> None:
        """Let it import."""
        assert self.receive()["type"] == "hello"
        words = list(program or self.program)
        self.send(type="prepare", modules=["noted"], calls=list(calls), path=None, program=words)

    def serve(self, *calls: str) -> None:
        """Let it import, and fork from now on."""
        answer = self.ask(*calls)
        assert (answer["type"], answer["failed"], answer["refusal"]) == ("ready", [], ""), answer
        self.send(type="serve", shown={})

    def begin_fork(self, **fields: Any) -> Fork:
        """Ask for a worker."""
        fork = Fork(self.printed, **fields)
        self.forks.append(fork)
        socket.send_fds(self.helper, [fork.message], fork.fds)
        fork.close_theirs()
        return fork

    def receive_pid(self) -> int:
        """Return the worker that was forked."""
        pid = int(self.helper.recv(64))
        assert pid > 0
        self.pids.append(pid)
        return pid

    def await_exit(self, pid: int) -> int:
        """Return how a worker ends: this process is its parent, like a helper."""
        self.pids.remove(pid)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def end(self) -> None:
        self.socket.close()
        self.helper.close()
        for fork in self.forks:
            fork.close()
        with self.process:
            self.process.kill()
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.fixture
def subreaper() -> Iterator[None]:
    """Let this process be the parent of the workers, as a helper is."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    yield
    prctl(PR_SET_CHILD_SUBREAPER, 0)


@pytest.fixture
def hook(tmp_path: Path, subreaper: None) -> Iterator[Hook]:
    """A forkserver that was just started."""
    one = Hook(tmp_path)
    yield one
    one.end()


def test_worker_runs_the_program(hook: Hook) -> None:
    """Below its helper, and the forkserver lives. Looks that find nothing have no answer."""
    hook.serve()
    hook.socket.send(b"??")
    fork = hook.begin_fork()
    pid = hook.receive_pid()
    fork.begin()

    assert fork.read_report() == ""
    assert hook.await_exit(pid) == 0
    assert hook.printed.read_text() == "main\n"
    assert hook.process.poll() is None


def test_own_files_are_checked_before_a_fork(hook: Hook) -> None:
    """Without any look before."""
    hook.serve()
    os.utime(hook.module, (1, 1))
    hook.begin_fork()

    assert hook.receive() == {"type": "stale", "why": f"{hook.module} has changed"}
    assert hook.helper.recv(1) == b""
    assert hook.process.wait(LIMIT_S) == 0


def test_installed_files_are_checked_at_a_look(hook: Hook) -> None:
    """A failure of a worker makes the agent ask for one."""
    hook.serve("noted:install")
    os.utime(hook.module, (1, 1))
    hook.socket.send(b"?")

    assert hook.receive() == {"type": "stale", "why": f"{hook.module} has changed"}
    assert hook.process.wait(LIMIT_S) == 0


def test_installed_files_do_not_delay_a_fork(hook: Hook) -> None:
    """They were looked at within a minute; there are too many for one turn on a processor."""
    hook.serve("noted:install")
    os.utime(hook.module, (1, 1))
    hook.begin_fork()

    assert hook.receive_pid() > 0


def test_change_during_the_imports_is_noticed(hook: Hook) -> None:
    """They may take minutes; a worker must not run what was read before the change."""
    hook.serve("noted:edit")
    hook.begin_fork()

    assert hook.receive() == {"type": "stale", "why": f"{hook.module} has changed"}


def test_program_never_runs_after_an_error(hook: Hook) -> None:
    """After an exception, Python would run it: outside of any round, beside the one that runs."""
    answer = hook.ask("noted:fill")

    assert answer["type"] == "stale"
    assert "Too many open files" in answer["why"]
    assert hook.process.wait(LIMIT_S) == 1
    assert hook.printed.read_text() == ""


def test_process_that_returns_from_its_fork_is_no_forkserver(hook: Hook) -> None:
    """It would fork workers, and the agent would watch the other one."""
    answer = hook.ask("noted:part_ways")

    assert answer["type"] == "stale"
    assert "forks" in answer["why"]


def test_worker_without_its_output_is_not_forked(hook: Hook) -> None:
    """The kernel drops the descriptors that a process has no room for."""
    hook.serve("noted:almost_fill")
    hook.begin_fork()
    answer = hook.receive()

    assert answer["type"] == "stale"
    assert "no descriptor free" in answer["why"]
    assert hook.process.wait(LIMIT_S) == 1
    assert hook.printed.read_text() == ""


def test_program_of_a_wrapper_does_not_wait(hook: Hook) -> None:
    """A wrapper may ask Python for something before it starts the worker's program."""
    answer = hook.ask(program=("train.py", "--lr", "1"))

    assert answer["type"] == "stale"
    assert "PYTHON_EXEC" in answer["why"]
    assert hook.process.wait(LIMIT_S) == 1
    assert hook.printed.read_text() == ""


def test_fork_beside_threads_of_a_library_does_not_warn(hook: Hook) -> None:
    """From Python 3.12 on it would, once for each worker, if the program wants all warnings."""
    hook.serve("noted:begin_native_thread")
    fork = hook.begin_fork()
    pid = hook.receive_pid()
    fork.begin()

    assert hook.await_exit(pid) == 0
    assert hook.printed.read_text() == "main\n"


def test_end_of_the_helper_ends_a_forkserver(hook: Hook) -> None:
    """A worker that no helper knows of must not run."""
    hook.serve()
    hook.begin_fork()
    hook.helper.close()

    assert hook.process.wait(LIMIT_S) in (0, 1)
    assert hook.printed.read_text() == ""


def test_end_of_the_agent_ends_a_forkserver(hook: Hook) -> None:
    """Its helper ends, too, but may be busy."""
    hook.serve()
    hook.socket.close()

    assert hook.process.wait(LIMIT_S) == 0


def test_worker_waits_until_its_helper_knows_it(hook: Hook) -> None:
    """It ends without having run if the helper gives it up."""
    hook.serve()
    fork = hook.begin_fork()
    pid = hook.receive_pid()
    fork.close_gate()

    assert hook.await_exit(pid) == 1
    assert hook.printed.read_text() == ""


def test_worker_of_a_dead_helper_does_not_run(hook: Hook) -> None:
    """There is no process to end it."""
    hook.serve()
    fork = hook.begin_fork(helper=1 << 30)
    pid = hook.receive_pid()
    fork.begin()

    assert hook.await_exit(pid) == 1
    assert hook.printed.read_text() == ""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_signal_that_has_waited_ends_a_worker(hook: Hook, signum: int) -> None:
    """The start of the program, after which CPython handles interrupts, waits for the helper."""
    hook.serve()
    fork = hook.begin_fork()
    pid = hook.receive_pid()
    os.write(fork.gate, b"1")
    assert fork.read_report() == ""
    os.kill(pid, signum)
    fork.close_gate()

    assert hook.await_exit(pid) == -signum
    assert hook.printed.read_text() == ""


def test_worker_that_cannot_begin_reports_why(hook: Hook) -> None:
    """As one whose program cannot be executed."""
    hook.serve()
    fork = hook.begin_fork(cpus=[9999])
    pid = hook.receive_pid()
    fork.begin()

    assert fork.read_report().startswith("22 ")
    assert hook.await_exit(pid) == 127
    assert hook.printed.read_text() == ""


def test_forkserver_whose_forks_hang_is_refused(hook: Hook) -> None:
    """The child that tries it is ended by its own alarm, which the test does not wait for."""
    hook.begin_ask("noted:hang_in_forks")
    children: list[int] = []
    while not children and hook.process.poll() is None:
        children = list_descendants(hook.process.pid)
    os.kill(children[0], signal.SIGALRM)

    assert "hangs" in hook.receive()["refusal"]


def test_fork_that_fails_is_answered(hook: Hook) -> None:
    """The machine may have no process left; the next fork may work."""
    hook.serve("noted:fork_no_more")
    hook.begin_fork()

    assert hook.helper.recv(64) == b"-11"
    assert hook.process.poll() is None


def test_workers_share_no_secrets_and_no_positions(tmp_path: Path, subreaper: None) -> None:
    """Each has its own random numbers, key and place in a file that an import has opened."""
    hook = Hook(tmp_path, ("-c", SHARING))
    try:
        hook.serve()
        for _ in range(2):
            fork = hook.begin_fork()
            pid = hook.receive_pid()
            fork.begin()
            assert hook.await_exit(pid) == 0
        one, other = hook.printed.read_text().splitlines()
    finally:
        hook.end()

    one_random, one_key, one_line = one.strip("[]").split(", ", 2)
    other_random, other_key, other_line = other.strip("[]").split(", ", 2)
    assert one_random != other_random
    assert one_key != other_key
    assert one_line == other_line
