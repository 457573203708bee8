"""A worker whose descendants do everything to outlive it.

Local rank 0 has the brood; the others are alone and ignore the signals that stop a worker. Each
descendant has a separate session, ignores those signals too, and holds standard output and error
open. The kinds, and how they differ:

    session     just that
    daemon      an orphan: its parent has ended
    closed      has closed every descriptor
    scrubbed    another program, with an empty environment
    breeder     has a child every few ms, each of which lives for a while
    comet       a chain: each link starts the next one and ends

All report `brood` with their name and the worker's pid, the comet once. All but the one without
descriptors share a lock on the file `brood-JOB`, which the kernel lifts when the last of them is
gone. As its first act, a worker reports `elders`: processes of an earlier round of its job. After
`started` it waits for a command: `exit CODE` ends it.
"""

import fcntl
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
LIFE_S = 0.2
"""Of a breeder's child."""
BIRTHS_EVERY_S = 0.05
LINK_S = 0.02
"""Of a link of the comet."""
PARENT = os.getpid()
END_S = time.monotonic() + 60
"""Only SIGKILL ends a comet for good, so this ends it if its test fails."""


def find_elders() -> list[int]:
    """Return the processes of this job with the mark of another round."""
    job, ours = (
        f"{name}={os.environ[name]}".encode() for name in ("RALLYPOINT_JOB_ID", "RALLYPOINT_ROUND")
    )
    found: list[int] = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                entries = file.read().split(b"\0")
        except OSError:
            continue  # gone, or not ours
        if job in entries and ours not in entries:
            found.append(int(name))
    return found


def is_free(lock_fd: int) -> bool:
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def report(kind: str, **fields: object) -> None:
    LINE.send(json.dumps({"kind": kind, "pid": os.getpid(), **fields}).encode())


def descend(life: Callable[[], None]) -> None:
    """Continue in a child with its own session that ignores the stop signals."""
    if os.fork() == 0:
        os.setsid()
        for signum in STOPS:
            signal.signal(signum, signal.SIG_IGN)
        life()
        os._exit(0)


def stay() -> None:
    while True:
        signal.pause()


def session() -> None:
    report("brood", name="session", parent=PARENT)
    stay()


def daemon() -> None:
    if os.fork() == 0:
        report("brood", name="daemon", parent=PARENT)
        stay()


def closed() -> None:
    report("brood", name="closed", parent=PARENT)
    os.closerange(0, 1024)
    stay()


def scrubbed() -> None:
    report("brood", name="scrubbed", parent=PARENT)
    sleep = shutil.which("sleep")
    assert sleep is not None
    os.execve(sleep, ["sleep", "600"], {})


def breeder() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects them
    report("brood", name="breeder", parent=PARENT)
    while time.monotonic() < END_S:
        if os.fork() == 0:
            time.sleep(LIFE_S)
            os._exit(0)
        time.sleep(BIRTHS_EVERY_S)


def comet() -> None:
    report("brood", name="comet", parent=PARENT)
    while time.monotonic() < END_S:
        if os.fork() != 0:
            os._exit(0)
        time.sleep(LINK_S)


LOCK_FD = os.open(f"brood-{os.environ['RALLYPOINT_JOB_ID']}", os.O_RDWR | os.O_CREAT, 0o600)
os.set_inheritable(LOCK_FD, True)  # for the one that becomes another program
HAS_BROOD = os.environ["LOCAL_RANK"] == "0"
ELDERS = find_elders()
WAS_FREE = not HAS_BROOD or is_free(LOCK_FD)
LINE = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
LINE.bind("")
LINE.connect("\0" + os.environ["E2E_MAILBOX"])
report("elders", pids=ELDERS, was_free=WAS_FREE)
if HAS_BROOD:
    fcntl.flock(LOCK_FD, fcntl.LOCK_SH)
    for life in (session, daemon, closed, scrubbed, breeder, comet):
        descend(life)
else:
    os.close(LOCK_FD)
    for signum in STOPS:
        signal.signal(signum, signal.SIG_IGN)
report(
    "started",
    parent=os.getppid(),
    argv=sys.argv[1:],
    env=dict(os.environ),
    at_s=time.monotonic(),
)
while True:
    match json.loads(LINE.recv(4096)):
        case ["exit", code]:
            sys.exit(int(code))
