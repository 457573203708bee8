"""What torchrun did with a scenario, written down once, so that no test has to run it again.

A record is a JSON file: exit codes, output, what each worker has found, and the files that were
left. It belongs to one version of torch and to one digest of the scenario; with another of either
it is stale. Paths, process ids, ports and times are replaced by names and small numbers, so a
record says nothing about the machine that it was made on.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import socket
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from support.processes.commands import SCRIPTS
from support.torchrun.launchers import INPUTS, OWN, Ended, Launcher, Machine, Ran, Scenario, Told

FOLDER = Path(__file__).parents[2] / "e2e" / "launching" / "torchrun_records"
AGAIN = "make record-torchrun"
"""The command that renews stale records."""
_SHELLS_OWN = frozenset({"_", "SHLVL", "PWD", "OLDPWD"})
"""Variables that a shell before the launcher sets, or not: no matter of the launcher's."""
_FIRST_PID, _FIRST_PORT = 100_001, 20_001


@dataclass(frozen=True, slots=True)
class Record:
    """What torchrun did with one scenario."""

    torch: str
    scenario: str
    """Digest of the scenario and of all that it runs."""
    machine: Machine
    port: str
    nodes: list[dict[str, Any]]
    """For each launcher its exit code, the lines that it printed, and its variables."""
    told: list[dict[str, Any]]
    """For each worker what it found; of its environment only what its launcher has not."""
    files: dict[str, str]
    """What was left below the working directory, by path."""

    def as_comparable(self) -> str:
        """Return what must be the same again, as lines: no log, no numbers of any kind in output,
        and workers in the order of their ranks."""
        told = sorted(
            json.dumps({**_without_bytecode(one), "pid": 0, "session": is_leader, "at_s": 0})
            for one in self.told
            for is_leader in [one["session"] == one["pid"]]
        )
        nodes = [[node["code"], *map(_without_numbers, sorted(node["out"]))] for node in self.nodes]
        files = {name: _without_numbers(_lines_of(name, text)) for name, text in self.files.items()}
        return json.dumps([nodes, _without_draws(told), _without_draws(files)], indent=1)


def _without_bytecode(one: dict[str, Any]) -> dict[str, Any]:
    """Return what a worker told without -B, which stands for PYTHONDONTWRITEBYTECODE."""
    return {**one, "command": [word for word in one["command"] if word != "-B"]}


def _lines_of(name: str, text: str) -> str:
    """Return a file's text; all workers write into one with filtered lines, in any order."""
    return "".join(sorted(text.splitlines(keepends=True))) if "filtered_" in name else text


def _without_numbers(text: str) -> str:
    text = re.sub(r'"py_callstack": "(?:[^"\\]|\\.)*"', "", text)  # Python's versions differ
    return re.sub(r"\d+", "0", re.sub(r"[ \t]+", " ", text))


def _without_draws(value: Any) -> Any:
    """Return a value without the order in which random names were met."""
    return json.loads(re.sub(r"drawn\d+|\b200\d\d\b", "drawn", json.dumps(value)))


def torch_version() -> str:
    """Return the version of the torch that is installed, without its build."""
    return metadata.version("torch").partition("+")[0]


def record_file(scenario: Scenario) -> Path:
    """Return where the record of a scenario is, for this torch."""
    return FOLDER / torch_version() / f"{scenario.name}.json"


def digest(scenario: Scenario) -> str:
    """Return what changes when torchrun has to be asked again."""
    found = hashlib.sha256()
    drive = _describe(scenario.drive) if scenario.drive else ""
    command = (scenario.command, scenario.nodes, sorted(scenario.env.items()), scenario.prefix)
    found.update(repr((*command, drive)).encode())
    for path in sorted(path for top in INPUTS for path in _files_below(top)):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def _describe(drive: Callable[..., object]) -> str:
    """Return the source of a function, with the values that it was made with."""
    values = inspect.getclosurevars(drive).nonlocals
    return f"{inspect.getsource(drive)}{sorted(values.items())}"


def _files_below(top: Path) -> Iterable[Path]:
    if top.is_file():
        return [top]
    return [path for path in top.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def find_staleness(scenario: Scenario) -> str:
    """Return why the record of a scenario cannot be used, or nothing."""
    path = record_file(scenario)
    if not path.exists():
        return f"{scenario.name} was never recorded with torch {torch_version()}: {AGAIN}"
    if json.loads(path.read_text())["scenario"] != digest(scenario):
        return f"{scenario.name} has changed since torchrun was recorded: {AGAIN}"
    return ""


def find_unused(scenarios: Iterable[Scenario]) -> list[Path]:
    """Return what belongs to none of the scenarios, or to another torch."""
    used = {record_file(scenario) for scenario in scenarios}
    return sorted(path for path in FOLDER.rglob("*.json") if path not in used)


def load(scenario: Scenario) -> Record:
    """Return the record of a scenario; fails when there is none, or a stale one."""
    stale = find_staleness(scenario)
    assert not stale, stale
    fields = json.loads(record_file(scenario).read_text())
    return Record(**{**fields, "machine": Machine(**fields["machine"])})


def save(scenario: Scenario, record: Record) -> None:
    """Write a record where `load` finds it."""
    path = record_file(scenario)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(record), indent=1, ensure_ascii=False) + "\n")


# --- a run as a record ---


def make_record(scenario: Scenario, ran: Ran) -> Record:
    """Write down what came of a scenario."""
    scrub = _Scrubber(ran)
    parent = ran.nodes[0].env
    kept = {*OWN, *scenario.env}
    machine = Machine(_scrub_limits(ran.machine.limits, ran.machine))
    told = []
    for at, one in enumerate(sorted(ran.told, key=lambda one: one.at_s)):
        env = {k: v for k, v in one.env.items() if parent.get(k) != v and k not in _SHELLS_OWN}
        lost = sorted(parent.keys() - one.env.keys())
        limits = _scrub_limits(one.limits, ran.machine)
        limits = {k: v for k, v in limits.items() if v != machine.limits[k]}
        fields = {**asdict(one), "env": dict(sorted(env.items())), "lost": lost}
        told.append({**fields, "limits": limits, "at_s": at})
    nodes = [
        {
            "code": node.code,
            "out": node.out,
            "err": node.err,
            "env": {name: value for name, value in sorted(node.env.items()) if name in kept},
        }
        for node in ran.nodes
    ]
    told.sort(key=lambda one: (one["env"]["TORCHELASTIC_RESTART_COUNT"], int(one["env"]["RANK"])))
    return Record(
        torch=torch_version(),
        scenario=digest(scenario),
        machine=machine,
        port=scrub.text(ran.port),
        nodes=scrub.all(nodes),
        told=scrub.all(told),
        files=scrub.all(_left(ran.folder)),
    )


def _scrub_limits(limits: Mapping[str, Any], machine: Machine) -> dict[str, Any]:
    """Return limits with processors counted from 0, and without those that only root may raise."""
    processors = [machine.processors.index(one) for one in limits["processors"]]
    return {**limits, "processors": processors, "files": limits["files"][:1]}


def _left(folder: Path) -> dict[str, str]:
    """Return the files that a run has left, without those that it was given."""
    given = {path.name for top in INPUTS for path in (top.iterdir() if top.is_dir() else [top])}
    return {
        str(path.relative_to(folder)): path.read_bytes().decode(errors="replace")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.suffix != ".pickle"  # torch's own affair, and no text
        and path.relative_to(folder).parts[0] not in {*given, "told"}
        and "__pycache__" not in path.parts
    }


class _Scrubber:
    """Replaces what another run of the same scenario would have otherwise."""

    RANDOM = (
        # Folders and names that torchrun draws; each one becomes a number.
        re.compile(r"(?<=torchelastic_)[a-z0-9_]{8}(?=\W|$)"),
        re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
    )
    FIXED = (
        (re.compile(r"(?<=[\[A-Z]\d{4} )\d\d:\d\d:\d\d\.\d+"), "12:00:00.0"),
        (re.compile(r"(?<=^[EIW])\d{4}(?= 12:00:00\.0)", re.M), "0101"),
        (re.compile(r"(?<=^\[[EIW])\d{4}(?= 12:00:00\.0)", re.M), "0101"),
        (re.compile(r"(?<=12:00:00\.0 )\d+(?= )"), "100"),
        (re.compile(r"20\d\d-\d\d-\d\d_\d\d:\d\d:\d\d"), "2000-01-01_12:00:00"),
        (re.compile(r'(?<="timestamp": ")\d{10}(?=")'), "946728000"),
        (re.compile(r'(?<="timestamp": )\d{10}\b'), "946728000"),
        (re.compile(r"(?<=torchinductor_)\w+"), "user"),
        (re.compile(r"(?<=total_run_time\W{3})\d+"), "0"),
    )

    def __init__(self, ran: Ran) -> None:
        self._names = _machine_names(ran.folder)
        numbers = {str(told.pid): str(_FIRST_PID + at) for at, told in enumerate(ran.told)}
        ports = [ran.port, *(told.env.get("MASTER_PORT", "") for told in ran.told)]
        for at, port in enumerate(dict.fromkeys(filter(None, ports))):
            numbers.setdefault(port, str(_FIRST_PORT + at))
        self._numbers = numbers
        self._number = re.compile(rf"(?<![\d.])(?:{'|'.join(numbers)})(?!\d)")
        runs = {told.env["TORCHELASTIC_RUN_ID"] for told in ran.told}
        folder = "|".join(re.escape(run) for run in sorted(runs) if run) or "none"
        self._run = re.compile(rf"(?<=/)(?:{folder})_([a-z0-9_]{{8}})(?=/|$|\")", re.M)
        self._drawn: dict[str, str] = {}

    def all(self, value: Any) -> Any:
        """Return the same value with all its texts and numbers replaced."""
        match value:
            case str():
                return self.text(value)
            case bool() | None:
                return value
            case int():
                return int(self._numbers.get(str(value), value))
            case Mapping():
                return {self.text(name): self.all(one) for name, one in value.items()}
            case _:
                return [self.all(one) for one in value]

    def text(self, text: str) -> str:
        for path, name in self._names:
            text = text.replace(path, name)
        text = self._run.sub(lambda match: match[0].replace(match[1], self._draw(match[1])), text)
        for pattern in self.RANDOM:
            text = pattern.sub(lambda match: self._draw(match[0]), text)
        for pattern, constant in self.FIXED:
            text = pattern.sub(constant, text)
        return self._number.sub(lambda match: self._numbers[match[0]], text)

    def _draw(self, drawn: str) -> str:
        return self._drawn.setdefault(drawn, f"drawn{len(self._drawn) + 1}")


def _machine_names(folder: Path) -> list[tuple[str, str]]:
    """Return paths and names of this machine, with what stands for them in a record."""
    paths = {
        str(folder): "@folder",
        sysconfig.get_path("purelib"): "@site-packages",
        sysconfig.get_path("stdlib"): "@stdlib",
        sys.executable: "@python",
        str(SCRIPTS): "@scripts",
        str(Path(sys.executable).resolve()): "@real-python",
        str(Path(__file__).parents[3]): "@repository",
    }
    if len(host := socket.gethostname()) > 3:
        paths |= {host: "@host"}
    return sorted(paths.items(), key=lambda pair: -len(pair[0]))


# --- a record as a run ---


def replay(record: Record, folder: Path) -> Ran:
    """Return what came of the scenario then, as if it had come of it in this folder now."""

    def fill(value: Any) -> Any:
        match value:
            case str():
                return value.replace("@folder", str(folder)).replace("@python", sys.executable)
            case Mapping():
                return {fill(name): fill(one) for name, one in value.items()}
            case list():
                return [fill(one) for one in value]
            case _:
                return value

    for name, text in record.files.items():
        path = folder / fill(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fill(text))
    nodes = [Ended(**fill(node)) for node in record.nodes]
    told = []
    for fields in fill(record.told):
        lost = fields.pop("lost")
        inherited = {k: v for k, v in nodes[0].env.items() if k not in lost}
        env = {**inherited, **fields["env"]}
        limits = {**record.machine.limits, **fields["limits"]}
        told.append(Told(**{**fields, "env": env, "limits": limits}))
    return Ran(Launcher.TORCHRUN, folder, nodes, told, record.port, record.machine)
