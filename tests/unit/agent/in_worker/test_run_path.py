"""`--run-path` runs a script as python would, and records its exception."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rallypoint.agent.in_worker import RUN_PATH

SCRIPTS = {
    "ends well": "print('done')",
    "prints how it was started": (
        "import sys, beside\n"
        "print(sys.argv, sys.path, __name__, __spec__)\n"
        "print(sys.modules['__main__'].__dict__ is globals())"
    ),
    "raises": "def f(): raise ValueError('bad', 1)\nprint('so far')\nf()",
    "raises from another": (
        "try: 1 / 0\nexcept ZeroDivisionError as error: raise KeyError('k') from error"
    ),
    "raises while another is handled": "try: {}[1]\nfinally: [][1]",
    "raises a group": "raise ExceptionGroup('two', [ValueError('a'), KeyError('b')])",
    "raises in a library": "import json\njson.loads('{')",
    "cannot be parsed": "def f(:\n  pass",
    "has its own hook": (
        "import sys, traceback\n"
        "sys.excepthook = lambda kind, error, tb: print(kind, len(traceback.extract_tb(tb)))\n"
        "raise ValueError"
    ),
    "has a hook that is broken": (
        "import sys\ndef hook(*_): sys.stderr.write('tried\\n')\nsys.excepthook = hook\n1 / 0"
    ),
    "exits with 0": "import sys; sys.exit()",
    "exits with 7": "import sys; sys.exit(7)",
    "exits with -2": "import sys; sys.exit(-2)",
    "exits with words": "import sys; sys.exit('no data')",
    "is interrupted": "raise KeyboardInterrupt",
    "is interrupted by a signal": "import os; os.kill(os.getpid(), 2)",
    "is killed": "import os; os.kill(os.getpid(), 9)",
    "leaves a thread": (
        "import threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\n"
        "raise ValueError"
    ),
    "is at exit": "import atexit\natexit.register(print, 'bye')\nraise ValueError",
}
RECORDED = {
    "raises": "ValueError: ('bad', 1)",
    "raises from another": "KeyError: 'k'",
    "raises while another is handled": "IndexError: list index out of range",
    "raises a group": "ExceptionGroup: two (2 sub-exceptions)",
    "raises in a library": "JSONDecodeError: Expecting property name enclosed in double quotes: "
    "line 1 column 2 (char 1)",
    "has its own hook": "ValueError: ",
    "has a hook that is broken": "ZeroDivisionError: division by zero",
    "leaves a thread": "ValueError: ",
    "is at exit": "ValueError: ",
}
"""Exceptions are recorded, exits and interruptions are not. The text of a syntax error differs
between versions."""


def run(folder: Path, *words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-u", *words],
        cwd=folder,
        env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(folder / "error.json")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_runs_as_under_python(tmp_path: Path, name: str) -> None:
    """Exit, output and traceback are those of `python SCRIPT`; an exception is recorded too."""
    script = tmp_path / "there" / "train.py"
    script.parent.mkdir()
    script.write_text(SCRIPTS[name])
    (script.parent / "beside.py").touch()
    error_file = tmp_path / "error.json"
    expected = run(tmp_path, str(script), "--lr", "a b")
    assert not error_file.exists()

    assert run(tmp_path, RUN_PATH, str(script), "--lr", "a b") == expected
    if name in RECORDED:
        message = json.loads(error_file.read_text())["message"]
        assert message["message"] == RECORDED[name]
        stack = message["extraInfo"]["py_callstack"]
        assert stack.startswith(("Traceback", "  + Exception Group Traceback"))
        assert "run_path" not in stack and "runpy" not in stack
        assert int(message["extraInfo"]["timestamp"]) > 0
    else:
        assert error_file.exists() == (name == "cannot be parsed")


def test_script_that_has_ended_succeeds(tmp_path: Path) -> None:
    """Its interpreter is not taken apart, where torch may abort the process."""
    (tmp_path / "train.py").write_text(
        "import builtins, os\n"
        "class Trap:\n    def __del__(self): os.abort()\n"
        "builtins.trap = Trap()\nprint('done')"
    )

    assert run(tmp_path, RUN_PATH, "train.py") == (0, "done\n", "")


def test_hook_that_fails_hides_nothing(tmp_path: Path) -> None:
    """Both errors are printed, that of the script and that of its hook."""
    (tmp_path / "train.py").write_text(
        "import sys\ndef hook(*_): raise KeyError('hook')\n"
        "sys.excepthook = hook\nraise ValueError('bad')"
    )
    code, _, stderr = run(tmp_path, RUN_PATH, "train.py")

    assert code == 1
    assert "ValueError: bad" in stderr and "KeyError: 'hook'" in stderr


@pytest.mark.long  # imports torch
def test_record_is_torchs(tmp_path: Path) -> None:
    """Message and stack are those of torch's `record`, without the frame of its wrapper."""
    (tmp_path / "train.py").write_text("def f():\n    raise ValueError('bad')\nf()")
    (tmp_path / "recorded.py").write_text(
        "import runpy\n"
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "record(lambda: runpy.run_path('train.py', run_name='__main__'))()"
    )
    error_file = tmp_path / "error.json"
    run(tmp_path, "recorded.py")
    theirs = json.loads(error_file.read_text())
    error_file.unlink()
    run(tmp_path, RUN_PATH, "train.py")
    ours = json.loads(error_file.read_text())

    for record in (theirs, ours):
        assert record["message"]["extraInfo"].pop("timestamp").isdecimal()
        stack = record["message"]["extraInfo"].pop("py_callstack")
        record["stack"] = stack[stack.index('  File "train.py"') :]
    assert ours == theirs


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_folder_and_zip_run(tmp_path: Path, kind: str) -> None:
    """A folder or zip with a `__main__.py` runs, and finds its own modules first."""
    folder, packed = tmp_path / "folder", tmp_path / "zip"
    folder.mkdir()
    (folder / "__main__.py").write_text("import sys, beside; print(sys.argv, sys.path)")
    (folder / "beside.py").touch()
    with zipfile.ZipFile(packed, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, file.name)
    path = str(tmp_path / kind)  # what is relative is absolute in sys.path only under python itself
    expected = run(tmp_path, path, "a")

    assert expected[0] == 0
    assert run(tmp_path, RUN_PATH, path, "a") == expected


def test_safe_path_is_kept(tmp_path: Path) -> None:
    """With `-P` no folder is added to the path, and none is removed."""
    (tmp_path / "train.py").write_text("import sys; print(sys.path)")

    assert run(tmp_path, "-P", RUN_PATH, "train.py") == run(tmp_path, "-P", "train.py")


def test_error_file_that_cannot_be_written(tmp_path: Path) -> None:
    """If the file cannot be written, the traceback is still printed, with one more line."""
    (tmp_path / "train.py").write_text("raise ValueError('bad')")
    (tmp_path / "error.json").mkdir()
    code, _, stderr = run(tmp_path, RUN_PATH, "train.py")

    assert code == 1
    assert stderr.startswith(f"cannot write {tmp_path}/error.json: ")
    assert stderr.endswith("ValueError: bad\n")
