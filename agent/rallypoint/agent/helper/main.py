"""The helper process: the parent of all worker processes of one node agent.

A process that has started gRPC must not fork, and the processes of the workers must be killed even
if the agent dies. So the agent starts the helper before gRPC, as `python -I -S`, and sends it
requests over a socket. For functions as workers, processes.py starts other interpreters as helpers.

Rules:
  * One thread with one poll waits for the socket, for SIGCHLD, and for children to exec.
  * The helper is a subreaper: every orphan below it becomes its child. Therefore ECHILD from
    waitpid proves that no descendant is left; a scan of /proc only finds processes to kill.
  * Each spawn gets one answer, spawned or spawn_failed; each spawned is followed by one exited.
    clean follows the exited of all workers.
  * The helper dates exits and signals by CLOCK_MONOTONIC, which the agent shares, because the agent
    may stand still. Deaths are reaped before a signal is sent: an exit without the time of a signal
    is not the effect of one.
  * When the socket closes or the agent's process ends (a fork of it may hold the socket), the agent
    is gone: the helper kills every descendant, then ends.

Frames (see frames.py) from the agent:
    spawn   {id, argv, env, cwd, cpus,  and the descriptors of stdin, stdout and stderr; forked: no
             forked, serves, via}       exec, argv is for a function; serves: it is a forkserver,
                                        and its socket to the agent comes, too; via: the id of the
                                        forkserver that forks it (null: none)
    signal  {ids (null: all), signal,   to the process group of each worker, or to the worker's
             alone}                     process without the processes that it has started
    sweep   {token, limit_ms}           KILL every descendant but forkservers
    fence   {at_ms}                     the same at this time of CLOCK_MONOTONIC, unless a later
                                        frame has moved it: a dead man's switch
    ping    {}                          pong answers
and to the agent:
    spawned {id, pid}    spawn_failed {id, errno, message}
    exited {id, pid, status, at_ns,    when it was reaped; when a signal to all, a sweep or the
            signalled_ns, killed}      fence first hit it (null: never); whether one was SIGKILL
    clean {token}        blocked {token, pids}                swept {pids}
    fenced {at_ms}       that fence has passed, and the helper begins to KILL every descendant
    pong {}

Standard library only, and no module that costs memory: no asyncio, subprocess, dataclasses, typing.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import socket
import time

from rallypoint.agent.helper.child import become_worker
from rallypoint.agent.helper.control import Control, ProtocolError
from rallypoint.agent.helper.descendants import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_NAME,
    RESCAN_MS,
    drain,
    end_descendants,
    kill_descendants,
    list_descendants,
    list_group,
    open_pidfd,
    prctl,
    signal_group,
)
from rallypoint.agent.helper.forkservers import Forkservers
from rallypoint.agent.helper.frames import IGNORED_SIGNALS, LAST_SWEEP_MS
from rallypoint.agent.helper.leftovers import kill_leftovers
from rallypoint.agent.helper.worker import Worker, signal_own

TYPE_CHECKING = False  # mypy knows the name; importing typing would cost 1 MB
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any, NoReturn

    Run = Callable[[list[str]], NoReturn]

PROCESS_NAME = b"rallypoint-help"  # 15 bytes, the kernel's limit
# A leftover holds GPU memory until it is gone, so the first spawn waits for it. The wait is
# limited, because a leftover that does not die must not exclude the node from the job.
LEFTOVERS_WAIT_MS = 2_000
# How often to look again at processes that outlived the limit; most deaths wake the loop anyway.
BLOCKED_RESCAN_MS = 500
# How often to look whether the agent lives, where there is no pidfd. The socket usually tells it.
AGENT_LOOK_MS = 500
# A fork takes some 20 ms. A forkserver that still has to make one so long after the order to sweep
# is killed like all others.
FORKS_SPARED_S = 1.0
# More workers than any node has: a longer table is a bug of the agent.
MAX_WORKERS = 4096
# Sweeps not yet answered clean. The agent asks for one per round.
MAX_SWEEPS = 64
_READ_BYTES = 64 * 1024


class Helper:
    """The event loop and its state."""

    def __init__(
        self,
        control: Control,
        wake_fd: int,
        agent_pid: int | None = None,
        agent_fd: int = -1,
        *,
        start_fd: int = -1,
        file_limits: tuple[int, int] | None = None,
        run: Run | None = None,
        inherited: Collection[int] = (),
    ) -> None:
        """Begin without workers.

        Args:
            control: the agent's socket.
            wake_fd: read end of the pipe that every SIGCHLD writes to.
            agent_pid: the agent's process, whose end counts too; None: only that of the socket.
            agent_fd: the agent's pidfd; -1: none.
            start_fd: the folder in which the agent started; -1: it cannot be opened.
            file_limits: how many files a worker may open, and to how many it may raise that; None:
                as many as this process.
            run: runs functions in workers; None: it cannot.
            inherited: descriptors that functions may use.
        """
        self._control = control
        self._agent_fd = agent_fd
        self._watched_pid = agent_pid if agent_fd < 0 else None
        self._start_fd = start_fd
        self._file_limits = file_limits
        self._run = run
        self._inherited = inherited
        self._wake_fd = wake_fd
        self._pid = os.getpid()
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(wake_fd, select.POLLIN)
        if agent_fd >= 0:
            self._poll.register(agent_fd, select.POLLIN)
        self._workers: dict[int, Worker] = {}  # to be forked, or not yet reaped, by worker id
        self._by_pid: dict[int, Worker] = {}
        self._by_exec_fd: dict[int, Worker] = {}
        self._leaderless: dict[int, int] = {}  # worker id -> group whose leader was reaped
        self._forkservers = Forkservers(self._poll, self._settle)
        self._sweeps: dict[int, float] = {}  # token -> when to report blocked; inf: reported
        self._spares_forks_until = 0.0  # monotonic time
        self._has_children = False
        self._fence_at_ms: int | None = None
        self._is_fence_confirmed = False

    def serve(self) -> None:
        """Run until the agent is gone."""
        while True:
            wants_write = self._control.flush()
            events = select.POLLIN | (select.POLLOUT if wants_write else 0)
            self._poll.modify(self._control, events)
            ready = [fd for fd, _ in self._poll.poll(self._compute_timeout_ms())]
            if self._agent_fd in ready or self._watched_pid not in (None, os.getppid()):
                return
            if self._wake_fd in ready:
                drain(self._wake_fd)
            for fd in ready:
                if fd in self._by_exec_fd:
                    self._finish_start(self._by_exec_fd[fd])
            # Deaths first: a request that follows from them must see the state after them.
            self._reap()
            self._forkservers.read(ready, self._pid)
            if self._control.fileno() in ready:
                messages = self._control.receive()
                if messages is None:
                    return
                for message in messages:
                    self._handle(message)
            if self._sweeps or self._is_past_fence():
                self._continue_sweeps()

    def _compute_timeout_ms(self) -> int | None:
        look_ms = None if self._watched_pid is None else AGENT_LOOK_MS
        waits = (self._compute_sweep_ms(), self._compute_fence_ms(), look_ms)
        return min((wait_ms for wait_ms in waits if wait_ms is not None), default=None)

    def _compute_fence_ms(self) -> int | None:
        if self._fence_at_ms is None:
            return None
        left_ms = self._fence_at_ms - _now_ms()
        if left_ms > 0:
            return left_ms
        if not self._has_children or self._forkservers.are_alone(self._pid):
            return None if self._is_fence_confirmed else 0
        return RESCAN_MS if left_ms > -LAST_SWEEP_MS else BLOCKED_RESCAN_MS

    def _is_past_fence(self) -> bool:
        return self._fence_at_ms is not None and _now_ms() >= self._fence_at_ms

    def _compute_sweep_ms(self) -> int | None:
        if not self._sweeps:
            return None
        first = min(self._sweeps.values())
        if first == float("inf"):
            return BLOCKED_RESCAN_MS
        return min(RESCAN_MS, max(0, round((first - time.monotonic()) * 1000)))

    def _handle(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "spawn":
                fds = self._control.claim(4 if message["serves"] else 3)
                try:
                    self._spawn(message, fds)
                finally:
                    for fd in fds:
                        os.close(fd)
            case "signal":
                self._reap()  # spawns before this request may have taken a while
                ids, is_alone = message["ids"], message["alone"]
                wanted = self._list_workers() if ids is None else ids
                ends_round = ids is None and not is_alone
                for worker_id in wanted:
                    self._signal(worker_id, message["signal"], is_alone, ends_round)
            case "sweep":
                if len(self._sweeps) >= MAX_SWEEPS:
                    raise ProtocolError("too many sweeps")
                self._sweeps[message["token"]] = time.monotonic() + message["limit_ms"] / 1000
                self._spares_forks_until = time.monotonic() + FORKS_SPARED_S
            case "fence":
                self._fence_at_ms = message["at_ms"]
                self._is_fence_confirmed = False
            case "ping":
                self._control.send("pong")
            case other:
                raise ProtocolError(f"unknown message {other!r}")

    # --- workers ---

    def _spawn(self, message: dict[str, Any], fds: tuple[int, ...]) -> None:
        worker_id = message["id"]
        refusal = self._find_refusal(worker_id)
        if refusal:
            self._refuse(worker_id, refusal, os.strerror(refusal))
            return
        try:
            if message["via"] is not None:
                self._workers[worker_id] = self._forkservers.ask(message, fds, self._pid)
            elif message["serves"]:
                self._start_forkserver(message, fds)
            else:
                self._note(Worker(worker_id, *self._fork(message, fds)))
        except OSError as error:
            self._refuse_for(worker_id, error)

    def _start_forkserver(self, message: dict[str, Any], fds: tuple[int, ...]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                pid, exec_fd = self._fork(message, (*fds, theirs.fileno()))
                self._forkservers.add(message["id"], pid, ours)
            except OSError:
                ours.close()
                raise
        self._note(Worker(message["id"], pid, exec_fd))

    def _settle(self, worker: Worker, outcome: int | OSError) -> None:
        """Let a worker begin that a forkserver has forked, or tell why there is none."""
        if isinstance(outcome, int) and (self._sweeps or self._is_past_fence()):
            outcome = OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        if isinstance(outcome, OSError):
            worker.give_up()
            del self._workers[worker.worker_id]
            self._refuse_for(worker.worker_id, outcome)
        else:
            worker.pid = outcome
            self._note(worker)
            worker.open_gate()

    def _note(self, worker: Worker) -> None:
        self._workers[worker.worker_id] = self._by_pid[worker.pid] = worker
        self._by_exec_fd[worker.exec_fd] = worker
        self._leaderless.pop(worker.worker_id, None)
        self._poll.register(worker.exec_fd, select.POLLIN)

    def _fork(self, message: dict[str, Any], fds: tuple[int, ...]) -> tuple[int, int]:
        exec_fd, report_fd = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(exec_fd)
            os.close(report_fd)
            raise
        if pid == 0:
            become_worker(
                message,
                fds,
                report_fd,
                self._pid,
                start_fd=self._start_fd,
                file_limits=self._file_limits,
                run=self._run,
                inherited=self._inherited,
            )
        os.close(report_fd)
        return pid, exec_fd

    def _find_refusal(self, worker_id: int) -> int:
        if worker_id in self._workers:
            return errno.EEXIST
        if self._sweeps or self._is_past_fence():  # it would be killed
            return errno.EBUSY
        return errno.EAGAIN if len(self._workers) >= MAX_WORKERS else 0

    def _refuse(self, worker_id: int, code: int, message: str) -> None:
        self._control.send("spawn_failed", id=worker_id, errno=code, message=message)

    def _refuse_for(self, worker_id: int, error: OSError) -> None:
        self._refuse(worker_id, error.errno or errno.EAGAIN, error.strerror or str(error))

    def _finish_start(self, worker: Worker) -> None:
        """Answer a spawn: its pipe was closed by exec, or holds the reason why exec failed."""
        report = os.read(worker.exec_fd, _READ_BYTES).decode("utf-8", "replace")
        self._poll.unregister(worker.exec_fd)
        os.close(worker.exec_fd)
        del self._by_exec_fd[worker.exec_fd]
        worker.exec_fd = -1
        if not report:
            self._control.send("spawned", id=worker.worker_id, pid=worker.pid)
            for signum, is_alone, ends_round in worker.waiting:
                if ends_round:
                    worker.note_signal(signum)
                signal_own(worker.pid, signum, is_alone=is_alone)
            worker.close_gate()
            return
        worker.close_gate()
        code, _, text = report.partition(" ")
        self._refuse(worker.worker_id, int(code), text)
        del self._workers[worker.worker_id], self._by_pid[worker.pid]  # reaped like an orphan

    def _list_workers(self) -> list[int]:
        """Return all that may live, without the forkservers."""
        return [*(one for one in self._workers if one not in self._forkservers), *self._leaderless]

    def _signal(self, worker_id: int, signum: int, is_alone: bool, ends_round: bool) -> None:
        worker = self._workers.get(worker_id)
        if worker is None:
            group = None if is_alone else self._leaderless.get(worker_id)
            if group is not None and not signal_group(self._pid, group, signum):
                del self._leaderless[worker_id]  # empty: another group may get its number
        elif worker.pid and (worker.exec_fd == -1 or signum == signal.SIGKILL):
            if ends_round:
                worker.note_signal(signum)
            signal_own(worker.pid, signum, is_alone=is_alone)
        else:
            worker.note_waiting(signum, is_alone, ends_round)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._has_children = False
                self._leaderless.clear()
                return
            if pid == 0:
                self._has_children = True
                return
            worker = self._by_pid.get(pid)
            if worker and worker.exec_fd != -1:
                self._finish_start(worker)
            if self._by_pid.pop(pid, None) and worker:
                del self._workers[worker.worker_id]
                self._forkservers.remove(worker.worker_id)
                self._control.send(
                    "exited",
                    id=worker.worker_id,
                    pid=pid,
                    status=status,
                    at_ns=time.monotonic_ns(),
                    signalled_ns=worker.signalled_ns,
                    killed=worker.was_killed,
                )
                if self._has_group(pid):
                    self._leaderless[worker.worker_id] = pid

    def _has_group(self, group: int) -> bool:
        try:
            os.killpg(group, 0)  # avoids most scans, because usually there is no such group
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return bool(list_group(self._pid, group))

    def _find_spared(self) -> set[int]:
        with_forks = time.monotonic() < self._spares_forks_until
        return self._forkservers.find_spared(with_forks=with_forks)

    def _continue_sweeps(self) -> None:
        self._reap()  # includes workers spawned since the last pass
        if self._is_past_fence() and not self._is_fence_confirmed:
            self._is_fence_confirmed = True
            self._control.send("fenced", at_ms=self._fence_at_ms)
            self._control.flush()  # many processes may take longer than the agent waits
        if self._has_children:
            for worker in self._workers.values():
                worker.note_signal(signal.SIGKILL)
            kill_descendants(self._pid, self._find_spared)
            self._reap()
        if not self._has_children or self._forkservers.are_alone(self._pid):
            for token in self._sweeps:
                self._control.send("clean", token=token)
            self._sweeps.clear()
            return
        now = time.monotonic()
        for token, deadline in self._sweeps.items():
            if deadline <= now:
                self._sweeps[token] = float("inf")
                left = set(list_descendants(self._pid)) - self._find_spared()
                self._control.send("blocked", token=token, pids=sorted(left))


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _open_folder() -> int:
    """Return the folder of the agent, which may lose its name while workers still start there."""
    try:
        return os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # it is on a file system that has gone away
        return -1


def main(
    control_fd: int,
    agent_pid: int | None = None,
    files_soft: int | None = None,
    files_hard: int = resource.RLIM_INFINITY,
    *,
    run: Run | None = None,
    inherited: Collection[int] = (),
) -> None:
    """Run the helper until the agent is gone.

    Args:
        control_fd: the socket to the agent.
        agent_pid: the agent's process, whose end counts too; None: only that of the socket.
        files_soft: how many files a worker may open; None: as many as this process.
        files_hard: to how many it may raise that.
        run: runs functions in workers; None: this helper cannot.
        inherited: descriptors that functions may use.
    """
    file_limits = None if files_soft is None else (files_soft, files_hard)
    control = socket.socket(fileno=control_fd)
    control.setblocking(False)
    control.set_inheritable(False)
    for signum in IGNORED_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    wake_fd, wake_write_fd = os.pipe()
    os.set_blocking(wake_fd, False)
    os.set_blocking(wake_write_fd, False)
    signal.set_wakeup_fd(wake_write_fd, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda signum, frame: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    prctl(PR_SET_NAME, PROCESS_NAME)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    start_fd = _open_folder()
    os.chdir("/")
    try:
        agent = Control(control)
        agent_fd = -1
        if agent_pid is not None:
            try:
                agent_fd = open_pidfd(agent_pid)
            except OSError:  # there is none here, or the agent has died
                pass
            if os.getppid() != agent_pid:
                return
        helper = Helper(
            agent,
            wake_fd,
            agent_pid,
            agent_fd,
            start_fd=start_fd,
            file_limits=file_limits,
            run=run,
            inherited=inherited,
        )
        # Before the loop: the scan takes 3 to 6 ms for 500 processes (measured), too little to be
        # worth the code of a scan in pieces; requests wait in the socket meanwhile.
        swept = kill_leftovers(LEFTOVERS_WAIT_MS)
        if swept:
            agent.send("swept", pids=swept)
        helper.serve()
    finally:
        end_descendants(wake_fd, LAST_SWEEP_MS)
