"""Run everything that no change waits for: `make nightly`.

The steps run one after the other, whatever became of those before. `.nightly/NAME.log` has the
output of each, and `.nightly/stamp.json` what each came to at this commit: a release needs a stamp
in which all have passed. What has ended at this commit is not run again, so a run that was cut off
continues; remove the stamp to begin again. `make nightly STEPS="records seeds"` runs a part.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TextIO

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).parents[2])

from support.tries.commit import draw, find_commit

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".nightly"
STAMP = FOLDER / "stamp.json"
PINS = ROOT / "constraints.txt"
JOBS = os.environ.get("JOBS", "4")
"""Tests at once. Those of this tier are heavy: more of them make each other late."""
MINUTES = float(os.environ.get("MINUTES", "60"))
"""Of fresh seeds."""
MATRIX = {"3.11": "", "3.12": "2.4.1", "3.13": "2.14.0", "3.14": ""}
"""Versions of Python, and of torch: the oldest that we support, and one later than what the other
tests run. Without torch, the tests of what needs none run."""
NEWEST = ("3.13",)
"""Pythons that get the newest gRPC, as users without our pins do."""
FREE = ("grpcio==", "grpcio-status==", "grpcio-reflection==", "grpcio-health-checking==")
OPTIONAL = ("3.14",)
"""Pythons that a machine need not have."""
TORCH_TIER = (
    *("tests/unit/torch", "tests/unit/elastic"),
    *("tests/e2e/torch", "tests/e2e/elastic", "tests/e2e/preload"),
)
COMPARED_WITH_TORCH = (
    "tests/unit/agent/output/test_destinations.py",
    "tests/unit/agent/torchelastic/test_logs_plugin.py",
    "tests/unit/cli/flags/test_plugin.py",
    "tests/unit/wire/test_loading.py",
)
"""Other tests that import torch."""
OF_THIS_TORCH = ("tests/e2e/elastic/cases",)
"""Tests that compare with records of one version of torch."""
OF_THE_TREE = ("tests/unit/repo", "tests/unit/release", "tests/unit/deploy")
"""Tests that ask for tools, whose answers are the same with each version."""
USUAL = "not long and not nightly and not records"
CORES = ("rallypoint.server.core", "rallypoint.agent.core")
TESTS_OF_CORES = (
    *("tests/unit/server/core", "tests/unit/agent/core", "tests/sim"),
    "tests/unit/server/shell/test_containment.py",  # of `core/containment.py`
)
COVERED_MIN = 95.0
"""Percent of the branches of both cores that their own tests and the simulation take."""
SIMULATED: Mapping[str, int] = {"cores": 400, "owners": 40, "shells": 60, "relays": 40}
"""How many seeds each world of `tests/sim/run.py` tries in its turn."""


class StepFailed(Exception):
    """A step has failed; the message says how."""


@dataclass
class Outcome:
    """What a step came to."""

    name: str
    passed: bool
    seconds: int
    load: float
    note: str
    skipped: list[str] = field(default_factory=list)
    """The reasons of skipped tests, with how many tests each skipped."""


@dataclass(frozen=True)
class Shell:
    """Runs commands in the checkout, and keeps what they print in a log."""

    log: TextIO

    def run(self, *command: str, **environment: str) -> None:
        """Run a command, without a second try of tests; raise StepFailed if it fails."""
        print("$", " ".join(command), file=self.log, flush=True)
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"NO_SECOND_TRY": "1"} | environment,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if done.returncode:
            raise StepFailed(f"{' '.join(command)[:100]} exited with {done.returncode}")


Step = Callable[[Shell], str]
"""Does its work, and returns what is worth a line."""


def make(*targets: str) -> Step:
    """Return a step that makes targets."""

    def run(shell: Shell) -> str:
        shell.run("make", *targets)
        return ""

    return run


def run_nightly_tests(shell: Shell) -> str:
    """Run the tests that run at no other time, with what only they need."""
    groups = ("--group=go", "--group=release", "--group=torchx")
    shell.run(sys.executable, *"-m pip install --quiet -c".split(), str(PINS), *groups)
    shell.run(sys.executable, "-m", "pytest", "-n", JOBS, "-m", "nightly")
    return ""


def run_with(version: str, torch: str) -> Step:
    """Return a step that runs the unit tests, and the tier of torch, under other versions."""

    def run(shell: Shell) -> str:
        python = find_python(version)
        if python is None and version in OPTIONAL:
            return f"not run: no python{version} here"
        if python is None:
            raise StepFailed(f"no python{version} here: install it")
        folder = FOLDER / f"python{version}"
        shutil.rmtree(folder, ignore_errors=True)
        shell.run(python, "-m", "venv", str(folder))
        own = str(folder / "bin" / "python")
        shell.run(own, "-m", "pip", "install", "--quiet", "--upgrade", "pip>=25.1")
        pins = folder / "constraints.txt"
        free = ("torch==", *(FREE if version in NEWEST else ()))
        lines = PINS.read_text().splitlines()
        pins.write_text("\n".join(line for line in lines if not line.startswith(free)))
        wanted = ["buf-bin", *([f"torch=={torch}", "scikit-learn"] if torch else [])]
        shell.run(own, *f"-m pip install --quiet -c {pins} -e . --group test".split(), *wanted)
        tests = ["tests/unit", *(f"--ignore={one}" for one in OF_THE_TREE)]
        if not torch:
            tests += [f"--ignore={one}" for one in (*TORCH_TIER, *COMPARED_WITH_TORCH)]
        pytest = ("-m", "pytest", "-p", "no:cacheprovider", "-n", JOBS)
        shell.run(own, *pytest, "-m", USUAL, *tests)
        if torch:
            tier = [*TORCH_TIER, *(f"--ignore={one}" for one in OF_THIS_TORCH)]
            shell.run(own, *pytest, "-m", "not nightly and not records", *tier)
        shutil.rmtree(folder)  # gigabytes
        return f"with torch {torch}" if torch else "without torch"

    return run


def find_python(version: str) -> str | None:
    """Return an interpreter of a version that works: on the path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))
    for python in (f"python{version}", *found):
        try:
            subprocess.run([python, "-c", ""], check=True, capture_output=True, timeout=60)
        except (OSError, subprocess.SubprocessError):
            continue
        return python
    return None


def measure_coverage(shell: Shell) -> str:
    """Measure which branches of the cores their tests and the simulation take."""
    data, report = FOLDER / "branches", FOLDER / "coverage.json"
    coverage = (sys.executable, "-m", "coverage")
    shell.run(sys.executable, *"-m pip install --quiet -c".split(), str(PINS), "coverage")
    what = ("--branch", f"--data-file={data}", f"--source={','.join(CORES)}")
    shell.run(*coverage, "run", *what, "-m", "pytest", "-n", "0", "-m", USUAL, *TESTS_OF_CORES)
    shell.run(*coverage, "json", "--quiet", f"--data-file={data}", "-o", str(report))
    shell.run(*coverage, "report", f"--data-file={data}", "--skip-covered", "--show-missing")
    totals = json.loads(report.read_text())["totals"]
    percent = 100 * totals["covered_branches"] / totals["num_branches"]
    note = f"{percent:.1f} % of {totals['num_branches']} branches"
    if percent < COVERED_MIN:
        raise StepFailed(f"{note}; at least {COVERED_MIN:g} % are wanted")
    return note


def try_fresh_seeds(shell: Shell) -> str:
    """Simulate histories that no run has tried, of this commit and this day, in turns."""
    end = time.monotonic() + 60 * MINUTES
    today = datetime.now(UTC).date().isoformat()
    firsts = {
        name: 1_000_000_000 + 1_000_000 * draw(f"{name} on {today}", 1_000) for name in SIMULATED
    }
    failed: list[str] = []
    for turn in count():
        for name, seeds in SIMULATED.items():
            if time.monotonic() > end:
                sums = ", ".join(f"{turn * block} {kind}" for kind, block in SIMULATED.items())
                if failed:
                    raise StepFailed(f"seeds failed: {'; '.join(failed)}")
                return f"at least {sums}"
            first = firsts[name] + turn * seeds
            try:
                command = ("tests/sim/run.py", "--keep-going", "--world", name)
                shell.run(sys.executable, *command, "--seeds", f"{first}:{first + seeds}")
            except StepFailed:
                failed.append(f"{name} {first}:{first + seeds}")
    raise AssertionError("the turns do not end")


STEPS: Mapping[str, Step] = {
    "check": make("check"),
    "test": make("test-all"),
    "nightly": run_nightly_tests,
    "records": make("test-records"),
    "frameworks": make("test-frameworks"),
    **{f"python{version}": run_with(version, torch) for version, torch in MATRIX.items()},
    "coverage": measure_coverage,
    "seeds": try_fresh_seeds,
}


def run_step(name: str) -> Outcome:
    """Run a step, whatever it raises."""
    path, begun, load = FOLDER / f"{name}.log", time.monotonic(), os.getloadavg()[0]
    with path.open("w") as log:
        try:
            passed, note = True, STEPS[name](Shell(log))
        except StepFailed as error:
            passed, note = False, f"{error}; see {path.relative_to(ROOT)}"
    seconds = round(time.monotonic() - begun)
    return Outcome(name, passed, seconds, round(load, 2), note, list(find_skips(path)))


def find_skips(log: Path) -> Iterator[str]:
    """Yield what runs of pytest say in a log about tests that they skipped."""
    is_inside = False
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("==="):
            is_inside = line.strip("= ") == "skipped"
        elif is_inside:
            yield " ".join(line.split())


def read_stamp(commit: str) -> dict[str, Outcome]:
    """Return what steps came to at this commit."""
    if not STAMP.exists():
        return {}
    stamp = json.loads(STAMP.read_text())
    if stamp["commit"] != commit:
        return {}
    return {one["name"]: Outcome(**one) for one in stamp["steps"]}


def write_stamp(commit: str, outcomes: Mapping[str, Outcome]) -> None:
    """Write what steps came to: green once all have passed."""
    is_green = all(name in outcomes and outcomes[name].passed for name in STEPS)
    steps = [asdict(one) for one in outcomes.values()]
    date = datetime.now(UTC).isoformat(timespec="seconds")
    fresh = STAMP.with_suffix(".new")
    stamp = {"commit": commit, "date": date, "is_green": is_green, "steps": steps}
    fresh.write_text(json.dumps(stamp, indent=1) + "\n")
    fresh.replace(STAMP)


def describe(outcome: Outcome) -> Iterator[str]:
    """Yield a line on a step, and one on each reason for which it skipped tests."""
    verdict = "passed" if outcome.passed else "FAILED"
    yield f"{outcome.name:11} {verdict} in {outcome.seconds:5} s  {outcome.note}"
    for reason in outcome.skipped:
        yield f"{'':11} skipped {reason}"


def main() -> int:
    """Run the steps; return 1 if one has failed at this commit, or has not run."""
    parser = argparse.ArgumentParser(prog="nightly", description="run what no change waits for")
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)}")
    chosen = parser.parse_args().steps or list(STEPS)
    if unknown := set(chosen) - STEPS.keys():
        parser.error(f"no step {', '.join(sorted(unknown))}")
    FOLDER.mkdir(exist_ok=True)
    changes = ["git", "status", "--porcelain"]
    if subprocess.run(changes, cwd=ROOT, capture_output=True, text=True, check=True).stdout:
        parser.error("the tree has changes, and a stamp is about a commit: commit them first")
    commit = find_commit()
    for name in chosen:
        if name in read_stamp(commit):
            print(f"{name:11} has run at this commit", flush=True)
            continue
        outcome = run_step(name)
        write_stamp(commit, read_stamp(commit) | {name: outcome})  # another part may run beside
        print(*describe(outcome), sep="\n", flush=True)
    outcomes = read_stamp(commit)
    missing = [name for name in STEPS if name not in outcomes]
    failed = [name for name, one in outcomes.items() if not one.passed]
    took = sum(one.seconds for one in outcomes.values())
    print(f"{took} s in all; failed: {', '.join(failed) or 'none'}", end="; ")
    print(f"not run yet: {', '.join(missing) or 'none'}")
    return 1 if failed or missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
