"""A real Slurm on this machine: a controller and several nodes, each a separate host.

Everything is in namespaces: the nodes have their own host names, addresses and processes, so the
scripts of `examples/slurm` run as they would elsewhere. Configuration, munge key, sockets and spool
are in one temporary folder. Nothing else of this machine is touched, and nothing outlives the
cluster: its first process is the init of all others, and dies with the process that tests run in.

Slurm tracks processes with cgroups if this machine has a freezer of version 1, as `is_tracked`
says. Otherwise it follows parents (proctrack/linuxproc), and its signals reach workers too.

A job that is queued again starts when the credentials of its first life have expired, which takes
two minutes elsewhere. Nodes refuse one that starts before that in the second of its first end.
"""

from __future__ import annotations

import os
import secrets
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Self

from support.processes.feed import LIMIT_S

PROGRAMS = ("slurmctld", "slurmd", "munged", "unshare", "nsenter", "ip", "bash")
NODES = ("n1", "n2", "n3")
_HERE = Path(__file__).parent
_FREEZER = Path("/sys/fs/cgroup/freezer")
_POLL_S = 0.1
_NAMESPACES = ("--mount", "--pid", "--uts", "--net", "--ipc")

CONFIGURATION = """\
ClusterName=rallypoint
SlurmctldHost=login
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
ProctrackType={proctrack}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
KillWait=10
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={nodes} CPUs=4 RealMemory=1000
PartitionName=main Nodes={nodes} Default=YES PriorityTier=1 GraceTime=40
PartitionName=urgent Nodes={nodes} PriorityTier=9 PreemptMode=OFF
"""


class NotPermitted(Exception):
    """This machine cannot run a cluster; the text says why, and what to do."""


class Cluster:
    """A running Slurm. `enter` before a command line runs it on the login node."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """Start it, and wait until all nodes are idle.

        Args:
            env: environment of what it starts, and so of the jobs.

        Raises:
            NotPermitted: this machine does not permit it.
        """
        if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
            raise NotPermitted(f"no {missing[0]}: apt-get install slurm-wlm munge iproute2")
        if os.geteuid() != 0:
            raise NotPermitted("only root may make the hosts of a Slurm cluster")
        # Paths of sockets are short, so it is not the folder of a test.
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self._env = dict(env)
        self._off: set[str] = set()
        self._cgroup = _make_cgroup(self.folder.name)
        self.is_tracked = self._cgroup is not None
        """Slurm tracks processes with cgroups."""
        self._prepare()
        join = f'echo $$ > "{self._cgroup}/cgroup.procs"; ' if self._cgroup else ""
        cgroup = ("--cgroup",) if self._cgroup else ()
        room = ("unshare", *_NAMESPACES, *cgroup, "--fork", "--mount-proc", "--kill-child")
        argv = (*room, "bash", str(_HERE / "room.sh"), str(self.folder), str(self._cgroup or ""))
        with (self.folder / "room.log").open("w") as log:
            self._room = subprocess.Popen(
                ["bash", "-c", f'{join}exec "$@"', "room", *argv, self._addresses, *NODES],
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            self._await_line("ready")
            self.await_output("idle", "sinfo", "--noheader", "--format=%T")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def enter(self, *argv: str, cwd: Path | None = None) -> list[str]:
        """Return a command line that runs another one on the login node."""
        where = f"--wd={cwd or self.folder}"
        return ["nsenter", f"--target={self._init()}", "--all", where, *argv]

    def run(self, *argv: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
        """Run a command on the login node; return what it prints, without the last newline."""
        done = subprocess.run(
            self.enter(*argv, cwd=cwd),
            env=self._env if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, f"{argv}: {done.stderr}{self.logs()}"
        return done.stdout.strip()

    def await_output(self, wanted: str, *argv: str, limit_s: float = LIMIT_S) -> None:
        """Ask Slurm until its answer is this one: it has no way to wait for that."""
        end_s = time.monotonic() + limit_s
        while (found := self.run(*argv)) != wanted:
            assert time.monotonic() < end_s, f"{argv}: {found}, not {wanted}{self.logs()}"
            time.sleep(_POLL_S)

    def is_on(self, node: str) -> bool:
        """Return whether a node is switched on."""
        return node not in self._off

    def switch_off(self, node: str) -> None:
        """Kill everything on a node, Slurm's daemon included."""
        self._order("off", node)
        self._off.add(node)

    def switch_on(self, node: str) -> None:
        """Start Slurm's daemon on a node that is off."""
        self._order("on", node)
        self._off.discard(node)

    def logs(self) -> str:
        """Return the ends of the daemons' logs, for the message of a failure."""
        ends = (
            f"\n== {path.name}\n" + "\n".join(path.read_text().splitlines()[-8:])
            for path in sorted(self.folder.glob("*.log"))
        )
        return "".join(ends)

    def close(self) -> None:
        """Kill all of it, and wait until it is gone."""
        init = self._init(is_needed=False)
        fd = os.pidfd_open(init) if init else -1
        self._room.kill()
        self._room.wait()
        for pipe in (self._room.stdin, self._room.stdout):
            assert pipe is not None
            pipe.close()
        if fd >= 0:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            _await_end(fd)
            os.close(fd)
        if self._cgroup is not None:
            _remove_cgroup(self._cgroup)
        shutil.rmtree(self.folder)

    def _prepare(self) -> None:
        """Write what Slurm and munge read."""
        # 198.18.0.0/15 is for tests of networks (RFC 2544).
        self._addresses = f"198.18.{secrets.randbelow(254) + 1}"
        for name in ("etc", "state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        proctrack = "proctrack/cgroup" if self.is_tracked else "proctrack/linuxproc"
        text = CONFIGURATION.format(
            folder=self.folder, proctrack=proctrack, nodes=f"{NODES[0]},{','.join(NODES[1:])}"
        )
        (self.folder / "etc" / "slurm.conf").write_text(text)
        # Loaded even where nothing uses it.
        (self.folder / "etc" / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        hosts = [f"{self._addresses}.{number} {name}" for number, name in enumerate(NODES, 1)]
        lines = ["127.0.0.1 localhost", f"{self._addresses}.254 login", *hosts]
        (self.folder / "hosts").write_text("".join(f"{line}\n" for line in lines))

    def _order(self, order: str, node: str) -> None:
        assert self._room.stdin is not None
        self._room.stdin.write(f"{order} {node}\n")
        self._room.stdin.flush()
        self._await_line(f"{node} is {order}")

    def _await_line(self, wanted: str) -> None:
        """Read the next line of the room, which is this one unless it has ended."""
        assert self._room.stdout is not None
        pipe: IO[str] = self._room.stdout
        if pipe.readline().strip() != wanted:
            raise NotPermitted(f"no namespaces for a Slurm cluster here: {self.logs().strip()}")

    def _init(self, *, is_needed: bool = True) -> int:
        """Return the process id of the room's first process; 0 if it has ended and may have."""
        pid = self._room.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert children or not is_needed, f"the cluster has ended{self.logs()}"
        return int(children[0]) if children else 0


def _make_cgroup(name: str) -> Path | None:
    """Return a new freezer for a cluster, or None where there is none of version 1."""
    if not (_FREEZER / "cgroup.procs").exists():
        return None
    try:
        (_FREEZER / name).mkdir()
    except OSError:  # a container may see them read-only
        return None
    return _FREEZER / name


def _remove_cgroup(folder: Path) -> None:
    """Remove a freezer and those in it; all processes are gone, or about to be."""
    end_s = time.monotonic() + LIMIT_S
    for path in sorted((folder, *(one for one in folder.rglob("*") if one.is_dir())), reverse=True):
        while path.exists():
            try:
                path.rmdir()
            except OSError:
                if time.monotonic() > end_s:
                    raise
                time.sleep(_POLL_S)


def _await_end(fd: int) -> None:
    """Wait for the end of a process, and so of all in its namespace."""
    assert select.select([fd], [], [], LIMIT_S)[0], "the cluster survived SIGKILL"
