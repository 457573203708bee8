"""Workers with timers and with torch's control plane."""

import json
import os
import signal
import socket
import time
from pathlib import Path

from rallypoint.v1 import verdict_pb2
from support.processes.mailbox import Worker
from support.processes.world import WORKERS, World

ON = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
FILE = "TORCHELASTIC_TIMER_FILE"


def set_timer(worker: Worker, pid: int, after_s: float, signum: int = signal.SIGKILL) -> None:
    """Set a timer as torch's client would, for a process of this worker's node."""
    said = {
        "version": 1,
        "pid": pid,
        "scope_id": "step",
        "expiration_time": time.time() + after_s,  # noqa: TID251  # as torch does
        "signal": int(signum),
    }
    fd = os.open(worker.env[FILE], os.O_WRONLY | os.O_NONBLOCK)
    os.write(fd, json.dumps(said).encode() + b"\n")
    os.close(fd)


def own_folder(worker: Worker) -> Path:
    """Return the own folder of a worker's agent."""
    return Path(worker.env["RALLYPOINT_NOTICE_FILE"]).parents[1]


def ask(path: str, request: str) -> str:
    """Return the status line of an HTTP server at a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(10)
        line.connect(path)
        line.sendall(f"{request} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
        return line.recv(4096).partition(b"\r\n")[0].decode()


def test_worker_that_is_too_late_is_the_first_failure(world: World) -> None:
    """Only that worker is killed, verdict and report name the timer, and the job continues."""
    agent = world.agent("a", "--max-restarts=1", nproc=2, env=ON)
    early, late = world.mailbox.workers(2)
    early.tell("TERM", "obey")
    world.mailbox.wait("ready", pid=early.pid)
    assert Path(early.env[FILE]) == own_folder(early) / "timers"
    set_timer(early, early.pid, 600)
    set_timer(late, late.pid, 0.05)
    second = world.mailbox.workers(2, round=2)
    verdict = world.jobs.get(world.job_id).verdict

    assert (verdict.culprit.rank, verdict.culprit.exit.signal) == (1, signal.SIGKILL)
    assert verdict.culprit.exit.error.message.startswith("timer 'step' expired: not released")
    assert not verdict.culprit.exit.oom_killed
    assert verdict.consequence == verdict_pb2.VERDICT_CONSEQUENCE_RESTARTED
    expired = agent.wait_event("timer_expired")
    assert (expired["pid"], expired["local_rank"], expired["scope"]) == (late.pid, 1, "step")
    (stopped,) = world.mailbox.wait("signalled", pid=early.pid)
    assert stopped.fields["signum"] == signal.SIGTERM
    set_timer(second[0], second[0].pid, 0)
    assert agent.wait() == 1
    report = agent.said()
    assert f"  exitcode  : -9 (pid: {second[0].pid}) (SIGKILL)" in report
    assert any("timer 'step' expired: not released" in line for line in report)
    assert world.left() == []


def test_process_of_a_worker_that_is_too_late(world: World) -> None:
    """A child of a worker is signalled alone; processes that are no descendants never are."""
    bystander = world.start("bystander", ["sleep", "1000"])
    agent = world.agent("a", env=ON)
    (worker,) = world.mailbox.workers(1)
    worker.tell("spawn")
    (child,) = world.mailbox.wait("grandchild")
    set_timer(worker, bystander.pid, -1)
    agent.wait_event("timer_expired")
    set_timer(worker, child.pid, 0)
    expired = agent.wait_event("timer_expired", count=2)

    assert (expired["pid"], expired["local_rank"]) == (child.pid, 0)
    assert bystander.is_running()
    worker.tell("exit", "0")
    assert agent.wait() == 0
    bystander.kill()


def test_socket_of_every_worker_is_its_own(world: World) -> None:
    """Each worker has a socket, even if the agent inherited one; a path too long means none."""
    given = {"TORCH_WORKER_SERVER_SOCKET": "/tmp/given.sock"}
    world.agent("a", nproc=2, nnodes="2", env=given)
    deep = world.folder / ("x" * 100)
    deep.mkdir()
    other = world.agent("b", nproc=2, nnodes="2", env={**given, "TMPDIR": str(deep)})
    workers = world.mailbox.workers(4)
    paths = [worker.env.get("TORCH_WORKER_SERVER_SOCKET", "") for worker in workers]

    assert len(set(paths[:2])) == 2
    assert given["TORCH_WORKER_SERVER_SOCKET"] not in paths
    assert paths[2:] == ["", ""]
    (off,) = other.events("worker_server_disabled")
    assert off["why"].startswith("too long for a socket")
    for path in paths[:2]:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path)


def test_torchs_own_clients(world: World) -> None:
    """`worker_main` serves while the worker runs, and `expires` ends the worker that hangs."""
    agent = world.agent("a", script=[str(WORKERS / "watched.py")], env=ON)
    (serving,) = world.mailbox.wait("serving", limit_s=60)
    answer = ask(serving.fields["path"], "POST /handler/ping")
    world.mailbox.answer(serving, "continue")

    assert answer == "HTTP/1.1 200 OK"
    assert agent.wait() == 1
    error = world.jobs.get(world.job_id).verdict.culprit.exit.error
    assert error.message.startswith("timer 'train step' expired: not released within 0.")
