"""Imports and folders: where modules come from, what they do, and what has changed since."""

from __future__ import annotations

import sys

from support.oddities.case import Case, Difference, own, zipped

SHOW_ENVIRONMENT = (
    "import own, os; os.system('env | grep -v ^_= | sort'); print(sorted(os.environ.items()))"
)

IMPORTS = (
    Case(
        "import-local-array",
        "import array, fcntl, re; print(array.__name__, fcntl.__name__, re.OWN)",
        {"re.py": "OWN = True", "array.py": "", "fcntl.py": ""},
        preload=(),
        says="True",
    ),
    Case(
        "import-local-first",
        "import colorsys; print(colorsys.OWN)",
        {"colorsys.py": "OWN = __file__"},
        preload=("colorsys",),
    ),
    Case(
        "import-safe-path",
        "import colorsys; print(hasattr(colorsys, 'OWN'), colorsys.__file__)",
        {"colorsys.py": "OWN = __file__"},
        preload=("colorsys",),
        env={"PYTHONSAFEPATH": "1"},
        says="False",
    ),
    Case(
        "import-prints",
        "import loud; print('script')",
        {"loud.py": "import sys\nprint('out'); print('err', file=sys.stderr)"},
        preload=("loud",),
        says="out\nscript",
    ),
    Case(
        "import-prints-far-too-much",
        "import loud; print('script')",
        {"loud.py": "print('x' * 3_000_000 + 'end')"},
        preload=("loud",),
        differs=Difference("up to 64 KiB", "xxend\nscript", "xxscript"),
    ),
    Case(
        "import-prints-late",
        "print('script'); import loud",
        {"loud.py": "print('loud')"},
        preload=("loud",),
        differs=Difference("is shown when the worker starts", "script\nloud", "loud\nscript"),
    ),
    Case(
        "import-redirects",
        "import loud; print('script')",
        {"loud.py": "import os\nos.dup2(os.open('log', os.O_WRONLY | os.O_CREAT), 1)"},
        preload=("loud",),
        refused="redirected descriptor 1",
    ),
    Case(
        "import-copies-output",
        "import loud; loud.say()",
        {"loud.py": "import os\nFD = os.dup(1)\ndef say(): os.write(FD, b'heard')"},
        preload=("loud",),
        refused="copied the descriptor of its output",
        says="heard",
    ),
    Case(
        "import-to-terminal",
        "import loud, sys; print('script', sys.stdout.isatty())",
        {"loud.py": "import sys\nprint('loud', sys.stdout.isatty(), sys.stdout.line_buffering)"},
        preload=("loud",),
        out="terminal",
        says="loud True False\r\nscript True",
    ),
    Case(
        "import-raises",
        "try:\n    import bad\nexcept ValueError as e: print(repr(e))\nimport bad",
        {"bad.py": "raise ValueError('no')"},
        preload=("bad",),
        exit=1,
        says="ValueError: no",
    ),
    Case(
        "import-missing",
        "import sys\ntry:\n    import gone\nexcept ImportError as e: print(e, e.name, e.path)\n"
        "print('gone' in sys.modules)",
        preload=("gone", "gone.too"),
    ),
    Case(
        "import-namespace-grows",
        "import space.a, space.c; print(space.c.__file__)",
        {"space/a.py": ""},
        later={"space/c.py": ""},
        preload=("space.a",),
        says="c.py",
    ),
    own(
        "import-changed",
        "import own; print(own.VALUE)",
        "VALUE = 1",
        later={"own.py": "VALUE = 22"},
        refused="own.py has changed",
        says="22",
    ),
    own(
        "import-deleted",
        "import own; print(own.VALUE)",
        "VALUE = 1",
        later={"own.py": None},
        refused="own.py has changed",
        exit=1,
    ),
    Case(
        "import-new-file",
        "import fresh; print(fresh.VALUE)",
        later={"fresh.py": "VALUE = 3"},
        preload=("fresh",),
        says="3",
    ),
    Case(
        "import-shadowed-later",
        "import colorsys; print(hasattr(colorsys, 'OWN'))",
        later={"colorsys.py": "OWN = 1"},
        preload=("colorsys",),
        differs=Difference("would be found first", "True", "False"),
    ),
    own(
        "import-sets-variables",
        SHOW_ENVIRONMENT,
        "import os\n"
        "os.environ['MADE'] = '1'; del os.environ['GONE']; os.environ['KEPT'] += '+'\n"
        "os.environ.setdefault('KEPT', 'no'); os.environ.setdefault('NEW', 'yes')",
        env={"GONE": "1", "KEPT": "1", "PYTHONPATH": "{here}/more"},
        says="MADE=1",
    ),
    own(
        "import-sets-rank",
        "import own, os; print(os.environ['LOCAL_RANK'])",
        "import os\nos.environ['LOCAL_RANK'] = '9'",
        says="9",
    ),
    Case(
        "import-zip-changed",
        "import inside; print(inside.X)",
        {"lib.zip": zipped(inside="X = 1")},
        later={"lib.zip": zipped(inside="X = 22")},
        env={"PYTHONPATH": "{here}/lib.zip"},
        preload=("inside",),
        refused="lib.zip has changed",
        says="22",
    ),
    Case(
        "import-after-environ",
        "import os; os.environ['LEVEL'] = '2'; import level; print(level.LEVEL)",
        {"level.py": "import os\nLEVEL = os.environ.get('LEVEL')"},
        preload=("level",),
        differs=Difference("sets a variable", "2", "None"),
    ),
    Case(
        "import-after-path",
        "import sys; sys.path.insert(0, 'other'); import which; print(which.__file__)",
        {"which.py": "", "other/which.py": ""},
        preload=("which",),
        differs=Difference("changes `sys.path`", "other", "HERE/which.py"),
    ),
    Case(
        "import-main",
        "import looks; print(looks.FILE)",
        {"looks.py": "import __main__\nFILE = getattr(__main__, '__file__', 'interactive')"},
        preload=("looks",),
        says="train.py",
    ),
    Case(
        "import-main-name",
        "VALUE = 5\nimport looks; print(looks.look())",
        {"looks.py": "import __main__\ndef look(): return __main__.VALUE, __main__.__name__"},
        preload=("looks",),
        says="5",
    ),
    own(
        "import-seeds-random",
        "import own, random; print(random.random())",
        "import random\nrandom.seed(1)",
        differs=Difference(
            "have a new seed in each worker", "0.13436424411240122", r"^0\.(?!1343)"
        ),
    ),
    own(
        "import-notes-process",
        "import own, os; print(own.PID == os.getpid())",
        "import os\nPID = os.getpid()",
        differs=Difference("from the process id", "True", "False"),
    ),
)

USER = f"home/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
USER_ENV = {"PYTHONUSERBASE": "{here}/home", "HOME": "{here}/home"}
SYSTEM = f"{sys.base_prefix}/bin/python3"
SHOW = "import sys; print(sys.path, sys.prefix, sys.executable, sorted(sys.path_importer_cache))"

PLACES = (
    Case(
        "place-sitecustomize",
        "import sys; print(sys.modules['sitecustomize'].__file__, sys.MINE)",
        {"more/sitecustomize.py": "import sys\nsys.MINE = __name__\nprint('custom', sys.argv)"},
        env={"PYTHONPATH": "{here}/more"},
        says="custom",
    ),
    Case(
        "place-sitecustomize-raises",
        "print('runs')",
        {"more/sitecustomize.py": "raise ValueError('mine')"},
        env={"PYTHONPATH": "{here}/more"},
        says="Error in sitecustomize",
    ),
    Case(
        "place-sitecustomize-lacks",
        "print('runs')",
        {"more/sitecustomize.py": "import nowhere"},
        env={"PYTHONPATH": "{here}/more"},
        says="Error in sitecustomize",
    ),
    Case(
        "place-usercustomize-late",
        "import sys, own; print(own.HAS_USER)",
        {
            f"{USER}/usercustomize.py": "import sys\nsys.USER = 1",
            "own.py": "import sys\nHAS_USER = hasattr(sys, 'USER')",
        },
        env=USER_ENV,
        python=SYSTEM,
        preload=("own",),
        differs=Difference("`usercustomize`", "True", "False"),
    ),
    Case(
        "place-wrapper-sets-variables",
        "import os; print([os.environ.get(name) for name in ('ADDED', 'KEPT', 'GONE', 'RANK')])",
        {"wrapper": f'#!/bin/sh\nexport ADDED=1 KEPT=2\nunset GONE\nexec {sys.executable} "$@"\n'},
        env={"KEPT": "1", "GONE": "1"},
        python="{here}/wrapper",
        says=r"\['1', '2', None, '3'\]",
    ),
    Case(
        "place-own-modules",
        "import json, select, signal; print(json.MINE, select.MINE, signal.MINE)",
        {f"more/{name}.py": "MINE = 1" for name in ("json", "re", "select", "signal", "socket")},
        env={"PYTHONPATH": "{here}/more"},
        preload=("json",),
        says="1 1 1",
    ),
    Case(
        "place-empty-python-path",
        f"import os; print(os.environ['PYTHONPATH']); {SHOW}",
        env={"PYTHONPATH": ""},
    ),
    Case(
        "place-folder-is-gone",
        "import os\ntry: print(os.getcwd())\nexcept OSError as e: print(e)",
        {"work": None},
        later={"work/../x": ""},
        cwd="{here}/work",
    ),
    Case(
        "place-odd-environment",
        "import os; print(ascii(os.environ['ODD']), os.environb[b'ODD'])",
        env={"ODD": "\udce9\udcff=\n"},
    ),
    own(
        "place-reads-environment",
        "import os, own; print(own.E['RANK'], own.g('RANK'))",
        "from os import environ as E, getenv as g",
        says="3 3",
    ),
    own(
        "place-import-reads-rank",
        "import own; print(own.R)",
        "import os\nR = os.environ.get('RANK')",
        refused="read RANK",
        says="3",
    ),
    own(
        "place-import-asks-for-rank",
        "import own; print(own.R)",
        "import os\nR = 'WORLD_SIZE' in os.environ",
        refused="read WORLD_SIZE",
        says="True",
    ),
    own(
        "place-import-copies-environment",
        "import own; print(own.E.get('RANK'))",
        "import os\nE = dict(os.environ)",
        differs=Difference("copies `os.environ`", "3", "None"),
    ),
    own(
        "place-import-starts-thread",
        "import own; print(own.T)",
        "import threading\nT = 1\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()",
        refused="a thread",
        says="1",
    ),
    own(
        "place-import-opens-socket",
        "import own; print(own.S.family)",
        "import socket\nS = socket.socket()",
        refused="a socket",
    ),
    own(
        "place-import-starts-process",
        "import own; print(own.P.wait())",
        "import subprocess\n"
        "P = subprocess.Popen(['sh', '-c', 'read x; exit 3'], stdin=-1)\n"
        "P.stdin.write(b'x\\n'); P.stdin.close()",
        refused="a process",
        says="3",
    ),
    own(
        "place-import-opens-deleted-file",
        "import own; print(own.F.read(), own.F.fileno())",
        "import tempfile\nF = tempfile.TemporaryFile('w+')\nF.write('kept'); F.seek(0)",
        says="kept 3",
    ),
    own(
        "place-import-opens-pipe",
        "import own; print(own.R)",
        "import os\nR, W = os.pipe()",
        refused="opened a pipe",
        says="3",
    ),
    own(
        "place-import-opens-events",
        "import own; print(own.E.fileno())",
        "import select\nE = select.epoll()",
        refused="a descriptor of events",
        says="3",
    ),
    own(
        "place-import-shares-memory",
        "import own; print(own.L.acquire())",
        "import multiprocessing\nL = multiprocessing.get_context('fork').Lock()",
        refused="memory that forks share",
        says="True",
    ),
    own(
        "place-import-sets-timer",
        "import own; print(own.signal.alarm(0))",
        "import signal\nsignal.alarm(1000)",
        refused="set a timer",
        says="1000",
    ),
    own(
        "place-import-changes-folder",
        "import os, own; print(os.getcwd())",
        "import os\nos.chdir('/')",
        refused="the working directory",
        says="^/\n",
    ),
    Case(
        "place-call",
        "import own; print(own.X)",
        {"own.py": "X = []\ndef fill(): X.append(1)"},
        preload=(),
        calls=("own:fill",),
        differs=Difference("`--preload-call`", r"\[\]", r"\[1\]"),
    ),
)

CASES = (*IMPORTS, *PLACES)
