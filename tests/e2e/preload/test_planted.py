"""The table of odd programs finds faults that are planted into the hook of forkservers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rallypoint.agent.evidence import hook as hooks
from rallypoint.agent.in_worker import PRELOAD
from rallypoint.agent.preload.forkserver import Hangup
from support.oddities import imports, processes, programs
from support.oddities.case import Case, find_fault
from support.oddities.driver import Driver

TABLES = (processes, programs, imports)
CASES = {case.name: case for table in TABLES for case in table.CASES}
FAULTS = {
    "keeps-path": ("main", "sys.path.remove(self._path)", "pass", "state-path"),
    "keeps-stdin": ("main", "sys, one, new)", "sys, one, new if fd else old)", "stream-input-pipe"),
    "forgets-changes": ("main", "== before.get(key)", "!= 0", "import-sets-rank"),
    "keeps-arguments": ("main", "original[-len(words) :] = words", "pass", "start-other-argv"),
    "ignores-safe-path": ("main", '"safe_path", False', '"none", False', "import-safe-path"),
    "hides-file": ("main", "self._variables[", "{}[", "import-main"),
    "keeps-sockets": (
        "forkserver",
        "peer.close()",
        "vars(sys).setdefault('s', []).append(peer)",
        "state-descriptors",
    ),
    "keeps-output": (
        "forkserver",
        "rallypoint_main.reopen(target)",
        "target or rallypoint_main.reopen(target)",
        "stream-output-file",
    ),
    "keeps-session": ("child", "os.setsid()", "pass", "state-process-group"),
    "outlives-helper": ("child", "ctypes.CDLL(None).prctl(", "print(", "state-death-signal"),
    "finalizes-little": ("child", "gc.unfreeze", "gc.collect", "end-generator"),
    "forgets-warnings": (
        "child",
        "filters.insert(",
        "warnings._filters_mutated(); filters.insert(",
        "stream-warned-by-import",
    ),
    "closes-on-exec": ("forkserver", "inheritable=True", "inheritable=False", "state-inheritable"),
    "loses-output": ("forkserver", "data[os.write(int(fd), data) :]", 'b""', "import-prints"),
    "misses-archives": ("checks", "archive or spec", "spec", "import-zip-changed"),
    "keeps-modules": ("", "del cache[new]", "pass", "state-modules-of-hook"),
    "loads-own-modules": ("", "FOLDER, library,", "*path, library,", "place-own-modules"),
    "keeps-python-path": ("", '["PYTHONPATH"] = before', '["X"] = before', "state-environment"),
}
"""File, text, what replaces it, and the case that must find it."""


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The case fails with the fault, and only then."""
    part, text, replaced, name = FAULTS[fault]
    hook = tmp_path / "hook"
    shutil.copytree(PRELOAD, hook, ignore=shutil.ignore_patterns("__pycache__"))
    file = hook / (f"rallypoint_{part}.py" if part else "sitecustomize.py")
    source = file.read_text()
    assert text in source
    monkeypatch.setattr(hooks, "PRELOAD", str(hook))

    assert not has_fault(CASES[name], tmp_path / "sound")
    file.write_text(source.replace(text, replaced))
    assert has_fault(CASES[name], tmp_path / "planted")


def has_fault(case: Case, folder: Path) -> bool:
    """Return whether a case finds something."""
    folder.mkdir()
    driver = Driver()
    try:
        return find_fault(case, *driver.compare(case, folder)) != ""
    except ExceptionGroup as group:  # a worker is forked that must not be, or there is no fork
        return group.subgroup((AssertionError, Hangup)) is not None
    finally:
        driver.close()
