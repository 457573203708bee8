"""Launches inside the process of the test: where output goes, and several launches at once."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from rallypoint.elastic import (
    ChildFailedError,
    DefaultLogsSpecs,
    LaunchConfig,
    LocalElasticAgent,
    LogsDest,
    LogsSpecs,
    RendezvousParameters,
    Std,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
    elastic_launch,
    get_rendezvous_handler,
)

LINE = 'echo "$RANK $ADDED"'


def config(logs_specs: LogsSpecs | None = None, **changed: Any) -> LaunchConfig:
    fields: dict[str, Any] = {"max_restarts": 0, "rdzv_backend": "rallypoint", **changed}
    return LaunchConfig(1, 1, 2, logs_specs=logs_specs, **fields)


class Added(DefaultLogsSpecs):
    """Adds a variable to each worker, and puts all files beside each other."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        dest = super().reify(envs)
        for rank, env in envs.items():
            env["ADDED"] = f"for {env['RANK']}"
            dest.stdouts[rank] = os.path.join(self.root_log_dir, f"{rank}.txt")
        return dest


class Broken(DefaultLogsSpecs):
    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        raise LookupError("no disk")


def test_redirected_output(tmp_path: Path) -> None:
    """Each worker has a file below the folder of its round."""
    elastic_launch(config(DefaultLogsSpecs(str(tmp_path), Std.OUT)), "sh")("-c", LINE)

    files = sorted(tmp_path.glob("*/attempt_0/*/stdout.log"))
    assert ["0 \n", "1 \n"] == [file.read_text() for file in files]


def test_output_with_prefixes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The console shows the chosen workers, with a prefix; filtered lines go to another file."""
    specs = DefaultLogsSpecs(str(tmp_path), tee=Std.ALL, local_ranks_filter={1})
    elastic_launch(
        config(
            specs,
            log_line_prefix_template="[${role_name}/${rank}] ",
            duplicate_stdout_filters=["keep"],
            role="trainer",
        ),
        "sh",
    )("-c", "echo keep $RANK; echo drop")

    assert capfd.readouterr().out.splitlines() == ["[trainer/1] keep 1", "[trainer/1] drop"]
    (filtered,) = tmp_path.glob("*/attempt_0/filtered_stdout.log")
    assert filtered.read_text() == "[trainer/1] keep 1\n"
    assert len(list(tmp_path.glob("*/attempt_0/*/stdout.log"))) == 2


def test_destinations_of_the_program(tmp_path: Path) -> None:
    """A class of the program assigns destinations, and may change the workers' variables."""
    elastic_launch(config(Added(str(tmp_path))), "sh")("-c", LINE)

    assert ["0 for 0\n", "1 for 1\n"] == [
        (tmp_path / f"{rank}.txt").read_text() for rank in range(2)
    ]


def test_destinations_that_fail(tmp_path: Path) -> None:
    """The launch fails, and the text names the class and its error."""
    with pytest.raises(ChildFailedError, match=r"Broken\.reify failed: LookupError: no disk"):
        elastic_launch(config(Broken(str(tmp_path))), "sh")("-c", LINE)


def test_launches_side_by_side_and_one_after_the_other() -> None:
    """Threads of one process launch at the same time, and leave neither threads nor files open."""
    elastic_launch(config(), "true")()  # what gRPC opens once stays
    before = len(os.listdir("/proc/self/fd"))
    found: dict[int, dict[int, Any]] = {}

    def run(number: int) -> None:
        found[number] = elastic_launch(config(), "sh")("-c", f"test {number} -ge 0")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(ChildFailedError):
        elastic_launch(config(), "false")()

    assert {number: {0: None, 1: None} for number in range(3)} == found
    assert len(os.listdir("/proc/self/fd")) <= before
    assert "rallypoint-agent" not in {thread.name for thread in threading.enumerate()}


def test_environment_is_that_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers inherit the program's variables, and the names of the signals that it handles."""
    monkeypatch.setenv("ADDED", "x")
    target = tmp_path / "out"
    line = f'test "$RANK" = 0 && echo "$ADDED $TORCHELASTIC_SIGNALS_TO_HANDLE" > {target}; true'
    elastic_launch(config(signals_to_handle="SIGTERM"), "sh")("-c", line)

    assert target.read_text() == "x SIGTERM\n"


def test_workers_get_the_address_and_port_of_the_specification(tmp_path: Path) -> None:
    """What the specification says replaces the round's address, as in the agent's own group."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    target = tmp_path / "out"
    parameters = RendezvousParameters("rallypoint", "", tmp_path.name, 1, 1)
    agent = LocalElasticAgent(
        WorkerSpec(
            *("r", 1, get_rendezvous_handler(parameters)),
            entrypoint="sh",
            args=("-c", f"echo $MASTER_ADDR $MASTER_PORT > {target}"),
            master_addr="some.host",
            master_port=port,
        ),
        DefaultLogsSpecs(),
    )

    assert agent.run().state is WorkerState.SUCCEEDED
    assert target.read_text() == f"some.host {port}\n"
    group = agent.get_worker_group()
    assert (group.master_addr, group.master_port) == ("some.host", port)


def test_helper_that_dies_takes_no_child_of_the_program(tmp_path: Path) -> None:
    """Workers of a lost helper are ended and restarted; the program's own children live."""
    pids = tmp_path / "pids"
    line = (
        f"echo $PPID >> {pids}; sleep 61 & "
        'test "$TORCHELASTIC_RESTART_COUNT" = 1 || { kill -9 $PPID; wait; }'
    )
    child: list[subprocess.Popen[bytes]] = []

    class Agent(LocalElasticAgent):
        def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
            if not child:
                child.append(subprocess.Popen(["sleep", "60"], start_new_session=True))
            return super()._start_workers(worker_group)

    parameters = RendezvousParameters("rallypoint", "", tmp_path.name, 1, 1)
    handler = get_rendezvous_handler(parameters)
    spec = WorkerSpec("r", 1, handler, entrypoint="sh", args=("-c", line), max_restarts=1)
    try:
        run = Agent(spec, DefaultLogsSpecs()).run()
        assert run.state is WorkerState.SUCCEEDED
        assert child[0].poll() is None
        assert len(set(pids.read_text().split())) == 2
    finally:
        child[0].kill()
        child[0].wait()
