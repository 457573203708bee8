"""Benchmarks in their short form: each runs to its end, and has samples for all that it measures.

No figure is judged, so nothing here is about the product: a change of the product that breaks a
benchmark is found each night. Other tests run the benchmarks that judge what they see, such as
coordinator_crash.py.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes.commands import run_program

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
LIMIT_S = 400
"""Of one benchmark. They run beside each other; an idle machine takes half a minute for most."""
ONCE = "--repeats 1 --workers 1 --launchers"
HARMED = ("worker SIGKILL: SIGTERM at all others", "worker SIGKILL: all started again")
ROUNDS = ("first round", "its CPU time", "round again", "CPU time of that")
RECOVERED = (
    *("command to all in main", "command to first all-reduce"),
    *("SIGKILL to all in main", "SIGKILL to first all-reduce", "memory of launchers"),
)
LAUNCHERS = ("torchrun, quickest settings", "Rallypoint", "Rallypoint, `--preload torch`")

COMMANDS = {
    "barriers.py --quick": {
        "8 workers": ["until all have their answer", "barriers a minute"],
        "8 workers, torch over a TCPStore": ["until all have their answer"],
    },
    "command/readers.py --only rounds --repeats 1 --size 2": {
        "500 watchers that never read": ["slowest heartbeat of another job"]
    },
    "command/readers.py --only nodes --nodes 300": {"GetJob, basic: 300 nodes x 8": ["took"]},
    "command/status.py --sizes 1 2 --repeats 1": {"`rallypoint status`": ["1 node", "2 nodes"]},
    "failures.py --agents 2 --repeats 1": {
        f"2 agents: {name}": list(HARMED) for name in ("a bare loop", "Rallypoint")
    },
    "journal.py --nodes 8 --runs 1 --rounds 2": {
        f"8 nodes, {store}": list(ROUNDS) for store in ("memory", "SQLite")
    },
    "launch.py --runs 1 --workers 1": {
        **{f"1 worker: {name}": ["command to all in main"] for name in LAUNCHERS},
        "coordinator": ["memory"],
        "1 node, 2 workers: Rallypoint": ["start", "end", "memory of launchers"],
        "1 node, 2 workers: torchrun": ["start", "end", "memory of launchers"],
    },
    "rounds.py --nodes 2 70 --runs 1 --rounds 2 --idle 0.5": {
        **{row: list(ROUNDS) for row in ("2 nodes", "70 nodes", "70 nodes, 64 on a stream")},
        "64 nodes, through a relay": ["memory of the relay"],
    },
    f"recovery.py {ONCE} torchrun cold preload": {row: list(RECOVERED) for row in LAUNCHERS},
    f"recovery.py --only spare steps {ONCE} cold preload": {
        row: ["SIGKILL to all in main", "SIGKILL to first all-reduce", "steps a second"]
        for row in LAUNCHERS[1:]
    },
}
"""Command lines, and rows with columns that have samples afterwards."""

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(LIMIT_S + 20)]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_row_is_measured(command: str, tmp_path: Path) -> None:
    """The benchmark writes its results, and each of its rows has samples."""
    path = tmp_path / "results.json"
    script, *words = command.split()
    argv = [sys.executable, str(BENCHMARKS / script), *words, "--json", str(path)]
    done = run_program(argv, LIMIT_S)
    # A busy machine misses the target for `status`.
    assert done.returncode == 0 or "target of" in done.stdout, done.stdout + done.stderr
    cells = json.loads(path.read_text())["cells"]
    # torchrun does not always recover, which the benchmark counts.
    measured = {
        (cell["row"], cell["column"])
        for cell in cells
        if cell["samples"] or ("torchrun" in cell["row"] and cell["missing"])
    }
    wanted = {(row, column) for row, columns in COMMANDS[command].items() for column in columns}

    assert wanted - measured == set()


def test_commands_are_known() -> None:
    """Every benchmark of `make bench` is run here."""
    listed = subprocess.run(
        [sys.executable, str(BENCHMARKS / "bench.py"), "--list"],
        capture_output=True,
        text=True,
        check=True,
    )
    scripts = {line.rpartition("benchmarks/")[2].split()[0] for line in listed.stdout.splitlines()}

    assert {command.split()[0] for command in COMMANDS} == scripts
