"""Pods without Kubernetes: each command in separate namespaces, as in a container.

A pod has its host name and its PID namespace, in which the agent is PID 1; the network and the
files are those of this machine. Needs root.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.deploy.manifests import Pod
from support.processes.commands import SCRIPTS, Command
from support.processes.feed import LIMIT_S
from support.processes.world import OBEDIENT, World

UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--uts", "--kill-child")
ENTRY = 'hostname "$0" && exec "$@"'


def localize(words: Sequence[str], replacements: Mapping[str, str]) -> list[str]:
    """Return a command with our `rallypoint`, and with the addresses and paths of a test."""
    return [replace(word, replacements) for word in (str(SCRIPTS / words[0]), *words[1:])]


def replace(word: str, replacements: Mapping[str, str]) -> str:
    """Return a word with every occurrence of the keys replaced by its value."""
    for old, new in replacements.items():
        word = word.replace(old, new)
    return word


class PodProcess:
    """The agent of one pod."""

    def __init__(
        self, world: World, pod: Pod, host: str, files: Mapping[str, str] | None = None
    ) -> None:
        """Start it, with a worker that obeys the test instead of the script.

        Args:
            world: the test's.
            pod: the template.
            host: its host name, and so the name of its node.
            files: where folders that are mounted are here.
        """
        (address,) = (
            word.partition("=")[2] for word in pod.command if word.startswith("--coordinator=")
        )
        variables = {"JOB_NAME": world.job_id, "JOB_UID": "a1", "KUBERNETES_NODE": f"on-{host}"}
        words = localize(pod.run(variables), {address: world.target})
        env = {
            one["name"]: replace(one["value"], files or {})
            for one in pod.container["env"]
            if "value" in one
        }
        script = next(n for n, word in enumerate(words) if word.startswith("/workspace/"))
        argv = [*UNSHARE, "sh", "-c", ENTRY, host, *words[:script], OBEDIENT]
        self.pod = pod
        self.command: Command = world.start(f"pod {host}", argv, env)

    @property
    def pid(self) -> int:
        """Return the agent's pid here: it is the only child of `unshare`."""
        path = Path(f"/proc/{self.command.pid}/task/{self.command.pid}/children")
        (child,) = path.read_text().split()
        return int(child)

    def delete(self) -> int:
        """Do as the kubelet does: run the hook of `preStop`; return the exit code of the agent.

        The hook ends with its container, and so before the SIGTERM of the kubelet.
        """
        grace_s = int(self.pod.template["spec"]["terminationGracePeriodSeconds"])
        hook = self.pod.container["lifecycle"]["preStop"]["exec"]["command"]
        started_s = time.monotonic()
        inside = ["nsenter", f"--target={self.pid}", "--pid", "--mount", "--uts", *hook]
        subprocess.run(inside, timeout=grace_s, check=False, env=os.environ)
        assert time.monotonic() - started_s < grace_s
        return self.command.wait(LIMIT_S)
