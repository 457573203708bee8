"""Scripts and programs instead of functions, and where they write."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from support.elastic.program import api
from support.elastic.program.case import Setup, case
from support.elastic.program.outcome import clean, launch
from support.elastic.program.starts import writes

SCRIPTS = Path(__file__).parent / "scripts"
TELLS, FAILS = str(SCRIPTS / "tells.py"), str(SCRIPTS / "fails.py")


def files_below(setup: Setup) -> dict[str, str]:
    """Return the log files, by path below the folder of the run."""
    found = {}
    for path in sorted(setup.logs.rglob("*")):
        if path.is_file():
            name = "/".join(path.relative_to(setup.logs).parts[1:])
            found[name] = clean(setup, path.read_text())
    return found


def told(setup: Setup) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(setup.folder.glob("told-*"))}


@case()
def script(setup: Setup) -> Any:
    """It has no return value, but arguments with the macro."""
    args = ("-u", TELLS, str(setup.folder), "${local_rank}", "a b", "--flag")
    return [launch(setup, sys.executable, *args), told(setup)]


@case()
def failing_script(setup: Setup) -> Any:
    """Its exit code; the other is stopped."""
    return launch(setup, sys.executable, FAILS, "7")


@case()
def script_with_an_exception(setup: Setup) -> Any:
    """It records nothing: there is no error file."""
    return launch(setup, sys.executable, FAILS, "raise", nproc_per_node=1)


@case()
def script_that_records(setup: Setup) -> Any:
    """Its error file has the traceback."""
    return launch(setup, sys.executable, FAILS, "record", nproc_per_node=1)


@case()
def missing_program(setup: Setup) -> Any:
    """It cannot be started."""
    return launch(setup, "/nowhere/program", nproc_per_node=1)


@case()
def missing_script(setup: Setup) -> Any:
    """Python ends with 2."""
    return launch(setup, sys.executable, "/nowhere/train.py", nproc_per_node=1)


@case()
def no_entry_point(setup: Setup) -> Any:
    """It is refused."""
    return launch(setup, None)


@case()
def redirected_output(setup: Setup) -> Any:
    """Files for each rank."""
    specs = api.DefaultLogsSpecs(log_dir=str(setup.logs), redirects=api.Std.ALL)
    return [launch(setup, writes, logs_specs=specs), files_below(setup)]


@case()
def duplicated_output(setup: Setup) -> Any:
    """Files with and without the filter's lines."""
    specs = api.DefaultLogsSpecs(log_dir=str(setup.logs), tee=api.Std.ALL)
    fields = {"duplicate_stderr_filters": ["err 1"], "logs_specs": specs}
    return [launch(setup, writes, **fields), files_below(setup)]
