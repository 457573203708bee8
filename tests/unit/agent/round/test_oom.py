"""A worker is reported as OOM-killed only if the kernel says so."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rallypoint.agent.round.observer import WorkerEnd
from rallypoint.agent.round.oom import (
    KernelLog,
    Mount,
    OomWatch,
    find_counters,
    parse_cgroups,
    parse_count,
    parse_killed_pid,
    parse_mounts,
)

MOUNTINFO = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 /docker/ab1 /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
broken
"""
V1 = Mount("cgroup", "/docker/ab1", "/sys/fs/cgroup/memory")
V2 = Mount("cgroup2", "/", "/sys/fs/cgroup/unified")
CGROUPS = "9:name=systemd:/\n4:cpu,memory:/docker/ab1/job:7\n0::/user.slice/a.scope\nbroken\n"


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (
            "3,812,12084897355,-;Memory cgroup out of memory: Killed process 22142 (python) "
            "total-vm:45412kB, anon-rss:35456kB, file-rss:5872kB\n SUBSYSTEM=x\n",
            22142,
        ),
        ("3,1,2,-;Out of memory: Killed process 7 (my (odd) name) total-vm:1kB", 7),
        ("3,1,2,-;Out of memory (oom_kill_allocating_task): Killed process 8 (x) total-vm:1kB", 8),
        ("3,1,2,-;Killed process 9 (python) total-vm:1kB, anon-rss:1kB", 9),
        ("6,1,2,-;oom_reaper: reaped process 22142 (python), now anon-rss:0kB", None),
        ("6,1,2,-;[  22142]     0 22142    11353    10332 python", None),
        ("6,1,2,-;Tasks state: Killed process 5 (x)", None),
        ("11,1,2,-;Out of memory: Killed process 6 (python) total-vm:1kB", None),
        ("", None),
    ],
)
def test_record_of_the_kernel_log(record: str, expected: int | None) -> None:
    """The kernel reports a kill in several wordings; records of programs do not count."""
    assert expected == parse_killed_pid(record)


def test_mounts_and_cgroups() -> None:
    """Version 2's hierarchy may count kills, and so may version 1's of the memory controller."""
    assert [V1, V2] == parse_mounts(MOUNTINFO)
    assert {"cgroup": "/docker/ab1/job:7", "cgroup2": "/user.slice/a.scope"} == parse_cgroups(
        CGROUPS
    )


@pytest.mark.parametrize(
    ("mount", "cgroup", "expected"),
    [
        (V2, "/a/b", ["/sys/fs/cgroup/unified/a/b/memory.events.local"]),
        (V2, "/", ["/sys/fs/cgroup/unified/memory.events.local"]),
        (V1, "/docker/ab1", ["/sys/fs/cgroup/memory/memory.oom_control"]),
        (V1, "/docker/ab1/job:7", ["/sys/fs/cgroup/memory/job:7/memory.oom_control"]),
        (V1, "/docker/other", []),
        (V2, "/../outside", []),
        (V2, "", []),
    ],
)
def test_where_a_cgroup_counts(mount: Mount, cgroup: str, expected: list[str]) -> None:
    """The count is in the file of the process's own cgroup, if the mount shows it."""
    found = [str(path) for path in find_counters([mount], {mount.kind: cgroup})]

    assert expected == found[:1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n", 2),
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", 5),
        ("oom_kill_disable 0\nunder_oom 0\n", None),
        ("", None),
    ],
)
def test_count_of_kills(text: str, expected: int | None) -> None:
    """Both versions write the count alike; old kernels write none."""
    assert expected == parse_count(text)


class Machine:
    """A /proc and a cgroup as files."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.group = folder / "proc", folder / "cgroup" / "job"
        self.group.mkdir(parents=True)
        (self.proc / "self").mkdir(parents=True)
        mountinfo = f"41 31 0:38 / {folder}/cgroup rw - cgroup2 cgroup2 rw\n"
        (self.proc / "self/mountinfo").write_text(mountinfo)
        self.count(0)

    def count(self, kills: int) -> None:
        (self.group / "memory.events").write_text(f"oom 9\noom_kill {kills}\n")

    def begin(self, pid: int) -> None:
        (self.proc / str(pid)).mkdir()
        (self.proc / str(pid) / "cgroup").write_text("0::/job\n")


def killed(watch: OomWatch, pid: int, *, is_suspect: bool = True) -> bool:
    """End a worker by SIGKILL, ours unless it is suspect; return whether the kernel killed it."""
    end = WorkerEnd(None, signal.SIGKILL, at_ns=0, is_kill_ours=not is_suspect, error=None)
    return watch.ended(pid).explain(end).oom_killed


def test_each_kill_explains_one_death(tmp_path: Path) -> None:
    """A kill that the cgroup counts after the start explains one SIGKILL that was not ours."""
    machine, watch = Machine(tmp_path), OomWatch(None, tmp_path / "proc")
    machine.count(7)
    for pid in range(1, 5):
        machine.begin(pid)
        watch.started(pid, 0)

    assert not killed(watch, 1)
    machine.count(8)
    assert not killed(watch, 2, is_suspect=False)
    assert killed(watch, 3)
    assert not killed(watch, 4)


def test_kills_before_the_start_explain_nothing(tmp_path: Path) -> None:
    """A new round starts from the count that it finds."""
    machine, watch = Machine(tmp_path), OomWatch(None, tmp_path / "proc")
    machine.begin(1)
    watch.started(1, 0)
    machine.count(3)
    killed(watch, 1, is_suspect=False)

    machine.begin(2)
    watch.started(2, 0)

    assert not killed(watch, 2)


@pytest.mark.parametrize("signum", [None, signal.SIGTERM])
def test_only_a_sigkill_is_explained(tmp_path: Path, signum: int | None) -> None:
    """An exit or another signal is never the kernel's OOM killer."""
    machine, watch = Machine(tmp_path), OomWatch(None, tmp_path / "proc")
    machine.begin(1)
    watch.started(1, 0)
    machine.count(1)
    end = WorkerEnd(None if signum else 1, signum, at_ns=0, is_kill_ours=False, error=None)

    assert not watch.ended(1).explain(end).oom_killed


def test_machine_without_sources(tmp_path: Path) -> None:
    """Without a log and without cgroups no worker is reported as killed, and nothing fails."""
    watch = OomWatch(None, tmp_path)
    watch.started(1, 0)

    assert not killed(watch, 1)


KILL = "3,1,2,-;Out of memory: Killed process {} (python) total-vm:1kB"


def test_complete_log_is_final(tmp_path: Path) -> None:
    """A complete log decides, whatever a cgroup counts."""
    machine = Machine(tmp_path)
    kernel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    watch = OomWatch(KernelLog(theirs.detach()), tmp_path / "proc")
    with kernel:
        kernel.send(KILL.format(1).encode())
        for pid in (1, 2):
            machine.begin(pid)
            watch.started(pid, 0)
        machine.count(5)

        assert not killed(watch, 1)
        kernel.send(b"6,1,2,-;usb 1-1: new device")
        kernel.send(KILL.format(2).encode())
        assert killed(watch, 2)
        assert not killed(watch, 2)
        watch.close()


def test_names_need_not_be_utf_8(tmp_path: Path) -> None:
    """Any bytes in the name of a mount point or a cgroup are the name of that file."""
    os.makedirs(os.fsencode(tmp_path) + b"/m\xe9/j\xe9")
    count = os.path.join(os.fsencode(tmp_path), b"m\xe9/j\xe9/memory.events")
    Path(os.fsdecode(count)).write_text("oom_kill 0\n")
    for name, line in (
        ("self/mountinfo", b"41 31 0:38 / %s/m\xe9 rw - cgroup2 cgroup2 rw\n"),
        ("7/cgroup", b"0::/j\xe9\n"),
    ):
        file = tmp_path / name
        file.parent.mkdir()
        file.write_bytes(line.replace(b"%s", os.fsencode(tmp_path)))
    watch = OomWatch(proc=tmp_path)
    watch.started(7, 0)
    Path(os.fsdecode(count)).write_text("oom_kill 1\n")

    assert killed(watch, 7)


def _memory_group() -> Path | None:
    """Return a new memory cgroup with 32 MB, or None where that is not allowed."""
    for mount in parse_mounts(Path("/proc/self/mountinfo").read_text()):
        group = Path(mount.point) / f"rallypoint_test_{os.getpid()}"
        limit = "memory.max" if mount.kind == "cgroup2" else "memory.limit_in_bytes"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(32 << 20))
            if mount.kind == "cgroup2":
                (group / "memory.swap.max").write_text("0")
        except OSError:
            group.rmdir()
            continue
        return group
    return None


@pytest.fixture
def memory_group() -> Iterator[Path]:
    group = _memory_group()
    if group is None:
        pytest.skip("this machine does not let us make a memory cgroup")
    yield group
    with suppress(OSError):
        group.rmdir()


GREEDY = "import sys; sys.stdin.read(1); kept = [bytearray(1 << 20) for _ in range(256)]"


@pytest.mark.parametrize("has_log", [True, False])
def test_real_kill(memory_group: Path, has_log: bool) -> None:
    """A kill by the kernel's OOM killer is distinguished from a kill by the agent."""
    log = KernelLog.open() if has_log else None
    if has_log and log is None:
        pytest.skip("the kernel's log may not be read here")
    watch = OomWatch(log)
    oom_killed: list[bool] = []
    for is_greedy in (False, True, False):
        with subprocess.Popen([sys.executable, "-c", GREEDY], stdin=subprocess.PIPE) as process:
            (memory_group / "cgroup.procs").write_text(str(process.pid))
            watch.started(process.pid, 0)
            if is_greedy:
                process.communicate(b"x", timeout=30)
            else:
                process.kill()
            assert process.wait(30) == -signal.SIGKILL
        oom_killed.append(killed(watch, process.pid))
    watch.close()

    assert oom_killed == [False, True, False]
